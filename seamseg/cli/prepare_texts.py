"""Texts of `seamseg prepare SOURCE --help`, with examples."""

CLASS_LIST = """\
[road]
id = 0
kind = stuff
color = 128 64 128

[car]
id = 1
kind = thing

[void]
ids = 255
names = __ignore__
"""

CITYSCAPES = """Convert raw Cityscapes to a dataset folder.

Put leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip (and leftImg8bit_trainextra.zip, gtCoarse.zip) into one
folder, unpacked or not; not all of them are required. train, val and train_extra become the splits train, val and
coarse, as far as they are available:

  seamseg prepare cityscapes /data/cityscapes data/cityscapes
  seamseg prepare cityscapes /data/cityscapes data/cityscapes --splits val --workers 4

Images are hard-linked where possible, else copied. The same command resumes
after an interruption, and converts what has changed in the source.
"""

VISTAS = """Convert Mapillary Vistas 1.x or 2.0 to a dataset folder.

ROOT holds config.json (or config_v1.2.json, config_v2.0.json), training/ and validation/, or their zip file:

  seamseg prepare vistas /data/vistas data/vistas
  seamseg prepare vistas /data/vistas data/vistas2 --version 2.0

Labels with "instances" are things, labels that are not evaluated become void, except groups of persons and of poles
(version 2.0), which become crowds. The instance images hold label * 256 + instance. (The original divided by 255, so
that some instances with high numbers have the next label in its folders.)
"""

COCO = """Convert COCO panoptic (133 classes) to a dataset folder.

ROOT holds train2017/, val2017/ and annotations/panoptic_{train,val}2017, .json and PNG folder. Only
panoptic_annotations_trainval2017.zip has to be unpacked; train2017.zip, val2017.zip and the zip files in it may stay
packed:

  unzip panoptic_annotations_trainval2017.zip -d /data/coco
  seamseg prepare coco /data/coco data/coco
  seamseg prepare coco /data/coco data/coco --splits val2017
"""

PANOPTIC = """Convert any data set in the COCO panoptic format: images, a JSON, PNG with ids R + 256 G + 65536 B.

  seamseg prepare panoptic data/mine --split train photos train.json masks
  seamseg prepare panoptic data/mine --split train t/photos t.json t/masks --split val v/photos v.json v/masks

The JSON has

  "categories":  [{"id": 1, "name": "car", "isthing": 1, "color": [0, 0, 142]}, ...]
  "images":      [{"id": 7, "file_name": "a.jpg", "width": 640, "height": 480}, ...]
  "annotations": [{"image_id": 7, "file_name": "a.png",
                   "segments_info": [{"id": 1, "category_id": 1, "iscrowd": 0}, ...]}, ...]

`color` is optional. Pixels of id 0 are void, or of the stuff class background, which things only get. If splits share a
file name, ids are prefixed by the name of the split.
"""

FOLDERS = f"""Convert folders of images and their masks, in any of these forms.

  seamseg prepare folders data/mine --classes classes.ini --split train photos labels instances --hold-out 0.2
  seamseg prepare folders data/mine --classes classes.ini --split train train/photos train/ids --divisor 1000

LABELS holds for each image one of, in this order:

  PHOTO.png               a class id at each pixel, and a number for each object in INSTANCES. Number 0 on a thing is a
                          crowd: objects that are not separated. With --divisor N: class * N + instance. If the
                          class list has one thing and no stuff but that of id 0, and there are no INSTANCES: the
                          numbers of its objects, 0 for none
  PHOTO.json              labelme: polygons, rectangles, circles, masks; shapes of one group_id are one object
  PHOTO.txt               YOLO: a line "class x y x y x y ..." for each object, from 0 to 1, class being the id
  PHOTO_CLASS_NUMBER.png  the mask of one object; also PHOTO/CLASS_NUMBER.png and PHOTO/CLASS/NUMBER.png

Masks may also be .tif or .bmp. Files are matched by name without extension; if labels are named a_labels.png, add
--suffixes "" _labels _instances.
SegmentationClass and SegmentationObject of Pascal VOC are LABELS and INSTANCES; NAME selects the list of images.
In the last three forms overlapping objects are stored in layers. Pixels without a label are of the stuff class named
background, which a list of things only gets (also for the value 0 of label images); else they are void. classes.ini has
a section for each class:

{"".join(f"  {line}".rstrip() + chr(10) for line in CLASS_LIST.splitlines())}
or classes.json: [{{"id": 1, "name": "car", "isthing": 1, "color": [0, 0, 142]}}, ...]. Colours are optional.
A .txt with one name per line, as of labelme, and data.yaml of YOLO are class lists, too: of things, with ids from 0.
Labelme needs none: its labels are the classes.
"""

INSTANCES = """Convert COCO instances (polygons or RLE), with or without label images for the stuff.

  seamseg prepare instances data/mine --split train photos instances_train.json labels --classes classes.ini
  seamseg prepare instances data/mine --split train photos instances_train.json

classes.ini lists stuff by its values in the label images and things by their category_id (see the help of `seamseg
prepare folders`). Overlapping objects are stored in layers. Without --classes the categories of the JSON are the
things. Without label images other pixels are of the stuff class named background, which things only get; else void.
Boxes are not enough. CVAT marks the masks of its brush as crowds, which training ignores: add --no-crowds.
"""

CVAT = """Convert images that were annotated with CVAT, exported as "Segmentation mask 1.1".

  seamseg prepare cvat data/mine --split train photos/ task_12.zip --classes classes.ini
  seamseg prepare cvat data/mine --split train photos/ out/cvat

EXPORT is the zip file or its folder: labelmap.txt, ImageSets/Segmentation/*.txt, SegmentationClass/ and
SegmentationObject/. If it has several lists, NAME selects one. With "Save images" PHOTOS may be the same file.
The class list (see the help of `seamseg prepare folders`) names the labels of CVAT and their kinds; the output of
`seamseg predict --format cvat` holds one. The label background is void, or the class of this name, which a list of
things only gets. Pixels of things without an object are a crowd.
"""

LABEL_STUDIO = """Convert images that were annotated with Label Studio, exported as JSON.

  seamseg prepare labelstudio data/mine --split train photos/ project-3.json --classes classes.ini
  seamseg prepare labelstudio data/mine --split train photos/ out/labelstudio

TASKS is a JSON file, or a folder or zip file of them. Of each task the annotation of the ground truth counts, else the
last one with regions that was not cancelled, else the last prediction; brush regions and polygons are read. The class
list (see the help of `seamseg prepare folders`) names the labels and their kinds; the output of `seamseg predict
--format labelstudio` contains one.
Overlapping objects are stored in layers; stuff gets the pixels that no object covers. Pixels without a region are void,
or of the stuff class named background, which a list of things only gets.
"""

MERGE = """Merge dataset folders.

  seamseg prepare merge data/cityscapes data/mine data/both
  seamseg prepare merge data/cityscapes data/vistas data/both --classes mapping.json

Classes with the same name become one. mapping.json renames them, null makes them void, FOLDER/NAME selects the class of
one folder:

  {"classes": {"object--vehicle--car": "car", "vistas/object--bench": null},
   "stuff": ["traffic sign"], "things": [], "splits": {"training": "train", "validation": "val"}}

`stuff` and `things` set the kind of classes that are stuff in one folder and a thing in another. Lists with the same
name are concatenated. If two folders share an image id, the ids of the later one are prefixed by its name.
"""

EXPORT = """Export the ground truth of a dataset folder as COCO panoptic, raw Cityscapes or Mapillary Vistas.

  seamseg prepare export data/mine out --split val
  seamseg prepare export data/city out --split val --format coco,cityscapes,vistas --workers 4

coco         OUT/coco/panoptic_SPLIT.json and PNG, for `seamseg evaluate --gt` and the COCO tools
cityscapes   OUT/cityscapes/gtFine/SPLIT/CITY/*_gtFine_{instanceIds,labelIds}.png and leftImg8bit/, for the official
             scripts; only classes of Cityscapes; at most 1000 instances of a class in an image
vistas       OUT/vistas/{training,validation}/{images,instances,labels,panoptic}/ and config.json, labels being the
             original ids of the classes, 0 to 254; at most 256 instances of a class in an image; crowds get a
             separate label, CLASS-group

`seamseg prepare panoptic`, `cityscapes` and `vistas` read the result. Images are hard-linked where possible, else
copied. Content that a format cannot represent is an error. Overlapping instances become one flat map, the first layer
on top. All crowds of a class in an image become one. An existing split in OUT is only overwritten with --force.
"""

TOY_CITY = """Generate synthetic street scenes in the layout of raw Cityscapes.

Writes leftImg8bit/ and gtFine/ with the official ids. The same seed gives the same images. To train on them, convert
them like the real data set:

  seamseg prepare toy-city toy_raw --train 200 --val 40 --size 256x512
  seamseg prepare cityscapes toy_raw toy
"""

TOY_THINGS = """Generate images of things, in a folder for each class, to try `seamseg classify` without a download.

Cuts the persons, riders, cars, trucks and bicycles out of the street scenes of `seamseg prepare toy-city`, and writes
OUT/train/CLASS/*.png and OUT/val/CLASS/*.png, the layout of torchvision's ImageFolder. The same seed gives the same
images:

  seamseg prepare toy-things toy_things
  seamseg classify train toy_things_resnext toy_things --log-dir runs/things
"""
