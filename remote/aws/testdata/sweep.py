"""Runs the sweeper of scripts/aws/template.yaml, as it is, with three instances of an emulator of AWS: two of the stack and
one of somebody else. Prints, for each limit in hours of the arguments, which of a, b and c it has ended."""
import json
import os
import sys
import urllib.parse

import yaml

template, endpoint, *limits = sys.argv[1:]
if urllib.parse.urlsplit(endpoint).hostname != "127.0.0.1":
    sys.exit("only for an emulator on this machine")
os.environ.update(AWS_ENDPOINT_URL=endpoint, AWS_DEFAULT_REGION="us-east-1", AWS_ACCESS_KEY_ID="a", AWS_SECRET_ACCESS_KEY="b", STACK="fisub")

import boto3  # noqa: E402


class Loader(yaml.SafeLoader):
    pass


Loader.add_multi_constructor("!", lambda loader, suffix, node: None)
with open(template) as f:
    resources = yaml.load(f, Loader)["Resources"]
code = resources["Sweeper"]["Properties"]["Code"]["ZipFile"]
if len(code) > 4096:
    sys.exit("longer than CloudFormation takes")
module = {}
exec(compile(code, "index.py", "exec"), module)

ec2 = boto3.client("ec2")
image = ec2.describe_images()["Images"][0]["ImageId"]
names = {}
for name, stack in {"a": "fisub", "b": "fisub", "c": "other"}.items():
    tags = [{"ResourceType": "instance", "Tags": [{"Key": "fisub-stack", "Value": stack}]}]
    run = ec2.run_instances(ImageId=image, MinCount=1, MaxCount=1, InstanceType="t3.micro", TagSpecifications=tags)
    names[run["Instances"][0]["InstanceId"]] = name
ended = []
for limit in limits:
    os.environ["MAX_HOURS"] = limit
    sys.stdout = sys.stderr
    module["handler"]({}, None)
    sys.stdout = sys.__stdout__
    states = {i["InstanceId"]: i["State"]["Name"] for r in ec2.describe_instances()["Reservations"] for i in r["Instances"]}
    ended.append("".join(sorted(name for i, name in names.items() if states[i] in ("shutting-down", "terminated"))))
print(json.dumps(ended))
