"""Help of `seamseg prepare SOURCE --help`: each teaches by example."""

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
"""

CITYSCAPES = """Raw Cityscapes to a dataset folder.

Put leftImg8bit_trainvaltest.zip and gtFine_trainvaltest.zip (and leftImg8bit_trainextra.zip, gtCoarse.zip) into one
folder, unpacked or not; any part of them will do. What it has of train, val and train_extra becomes the splits train,
val and coarse:

  seamseg prepare cityscapes /data/cityscapes data/cityscapes
  seamseg prepare cityscapes /data/cityscapes data/cityscapes --splits val --workers 4

Photos are hard-linked where the disk allows it, else copied. Stop it at any time: the same command goes on from there.
"""

VISTAS = """Mapillary Vistas 1.x or 2.0 to a dataset folder.

ROOT holds config.json (or config_v1.2.json, config_v2.0.json), training/ and validation/, or the zip file of them:

  seamseg prepare vistas /data/vistas data/vistas
  seamseg prepare vistas /data/vistas data/vistas2 --version 2.0

Labels with "instances" are things, labels that are not evaluated become void, but for groups of persons and of poles
(version 2.0), which become crowds. The instance images hold label * 256 + instance. (The original divided by 255: in
its folders some instances of high numbers belong to the next label.)
"""

COCO = """COCO panoptic (133 classes) to a dataset folder.

ROOT holds train2017/, val2017/ and annotations/panoptic_{train,val}2017, .json and PNG folder. train2017.zip and the
like need not be unpacked, only panoptic_annotations_trainval2017.zip, and the zip files in it may stay as they are:

  unzip panoptic_annotations_trainval2017.zip -d /data/coco
  seamseg prepare coco /data/coco data/coco
  seamseg prepare coco /data/coco data/coco --splits val2017
"""

PANOPTIC = """Any data set in the COCO panoptic format: photos, a JSON, PNG with ids R + 256 G + 65536 B.

  seamseg prepare panoptic data/mine --split train photos train.json masks
  seamseg prepare panoptic data/mine --split train t/photos t.json t/masks --split val v/photos v.json v/masks

The JSON has

  "categories":  [{"id": 1, "name": "car", "isthing": 1, "color": [0, 0, 142]}, ...]
  "images":      [{"id": 7, "file_name": "a.jpg", "width": 640, "height": 480}, ...]
  "annotations": [{"image_id": 7, "file_name": "a.png",
                   "segments_info": [{"id": 1, "category_id": 1, "iscrowd": 0}, ...]}, ...]

`color` may be left out. Pixels of id 0 are void. Where two splits use one name, ids get the name of the split in front.
"""

FOLDERS = f"""Folders of pictures: photos, labels (a class id at each pixel) and instances (a number for each object).

  seamseg prepare folders data/mine --classes classes.ini --split train photos labels instances
  seamseg prepare folders data/mine --classes classes.ini --split train train/photos train/ids --divisor 1000

Files belong together if their names are equal up to the ending; if labels are called a_labels.png, add
--suffixes "" _labels _instances. Instance number 0 on a thing class is a crowd: objects that could not be told apart.
With --divisor N the labels hold class * N + instance. classes.ini has a section for each class:

{"".join(f"  {line}".rstrip() + chr(10) for line in CLASS_LIST.splitlines())}
or classes.json: [{{"id": 1, "name": "car", "isthing": 1, "color": [0, 0, 142]}}, ...]. Colours may be left out.
"""

INSTANCES = """COCO instances (polygons or RLE), with or without label pictures for the stuff.

  seamseg prepare instances data/mine --split train photos instances_train.json labels --classes classes.ini
  seamseg prepare instances data/mine --split train photos instances_train.json

classes.ini lists stuff by its values in the label pictures and things by their category_id (see the help of `seamseg
prepare folders`). Objects may overlap; they go to layers. Without label pictures all that is no object is void, and
without --classes the categories of the JSON are the things.
"""

MERGE = """Dataset folders to one.

  seamseg prepare merge data/cityscapes data/mine data/both
  seamseg prepare merge data/cityscapes data/vistas data/both --classes mapping.json

Classes of one name become one. mapping.json renames them, null makes them void, FOLDER/NAME means those of one folder:

  {"classes": {"object--vehicle--car": "car", "vistas/object--bench": null},
   "stuff": ["traffic sign"], "things": [], "splits": {"training": "train", "validation": "val"}}

`stuff` and `things` settle what a class is that is stuff here and a thing there. Lists of one name are joined. Where
two folders have an image of the same id, the ids of the later one get its name in front.
"""

EXPORT = """The ground truth of a dataset folder as COCO panoptic, raw Cityscapes or Mapillary Vistas.

  seamseg prepare export data/mine out --split val
  seamseg prepare export data/city out --split val --format coco,cityscapes,vistas --workers 4

coco         OUT/coco/panoptic_SPLIT.json and PNG, for `seamseg evaluate --gt` and the COCO tools
cityscapes   OUT/cityscapes/gtFine/SPLIT/CITY/*_gtFine_{instanceIds,labelIds}.png and leftImg8bit/, for the official
             scripts; only classes of Cityscapes; at most 1000 instances of a class in an image
vistas       OUT/vistas/{training,validation}/{images,instances,labels,panoptic}/ and config.json, labels being the
             original ids of the classes, 0 to 254; at most 256 instances of a class in an image; crowds get a label
             of their own, CLASS-group

`seamseg prepare panoptic`, `cityscapes` and `vistas` read them again. Photos are hard-linked where the disk allows it,
else copied. What a format cannot hold is an error. Overlapping instances become one flat map, the first layer on top.
All crowds of a class in an image become one. A split that OUT has already is only written over with --force.
"""

CHECK = """What is wrong with a dataset folder, and what is in it.

  seamseg prepare --check data/mine
  seamseg prepare check data/mine --json report.json --sheet check.png

Reads every photo and mask. Errors are what training would stumble over, and make the exit code 1; warnings are often
mistakes. Also writes a sheet of photos with their masks drawn over them, to look at: DATA/check.jpg.
"""

TOY_CITY = """A made-up city of street scenes, written as raw Cityscapes.

It has leftImg8bit/ and gtFine/ with the official ids. The same seed gives the same pictures. To train on it, convert
it like the real one:

  seamseg prepare toy-city toy_raw --train 200 --val 40 --size 256x512
  seamseg prepare cityscapes toy_raw toy
"""
