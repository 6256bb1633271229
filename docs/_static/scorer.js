// The default scores of Sphinx, with guides before the pages of functions.
var Scorer = {
  score: ([page, title, anchor, description, score, file]) => (page.startsWith("reference/api/") ? score - 20 : score),
  objNameMatch: 11,
  objPartialMatch: 6,
  objPrio: { 0: 15, 1: 5, 2: -5 },
  objPrioDefault: 0,
  title: 15,
  partialTitle: 7,
  term: 5,
  partialTerm: 2,
};
