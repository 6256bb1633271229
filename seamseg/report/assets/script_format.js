// Numbers as people read them: fractions in percent, counts with thin gaps, a dash where nothing was measured.

const isNumber = (value) => typeof value === "number" && Number.isFinite(value);
const percent = (value, digits = 1) => (isNumber(value) ? (100 * value).toFixed(digits) : "–");
const count = (value) => (isNumber(value) ? String(value).replace(/\B(?=(\d{3})+$)/g, "\u202f") : "–");
const plural = (number, one, many = `${one}s`) => `${count(number)} ${number === 1 ? one : many}`;

/** The first value minus the second; null if one of them is missing. */
const difference = (values) => (isNumber(values[0]) && isNumber(values[1]) ? values[0] - values[1] : null);

/** A difference of fractions with its sign, in points of percent. */
function signed(value, digits = 1) {
  if (!isNumber(value)) return "–";
  const text = Math.abs(100 * value).toFixed(digits);
  if (Number(text) === 0) return `±${text}`;
  return (value > 0 ? "+" : "−") + text;
}

/** `better`, `worse` or nothing, of a difference that would show as more than zero. */
function trend(value) {
  if (!isNumber(value) || Math.abs(value) < 0.0005) return "";
  return value > 0 ? "better" : "worse";
}
