"""Makes the stack of scripts/aws/template.yaml in an emulator of AWS and prints its outputs and the users' policy as
JSON."""
import json
import sys
import urllib.parse

import boto3

template, endpoint = sys.argv[1:]
if urllib.parse.urlsplit(endpoint).hostname != "127.0.0.1":
    sys.exit("only for an emulator on this machine")


def client(name):
    return boto3.client(name, region_name="us-east-1", endpoint_url=endpoint, aws_access_key_id="a", aws_secret_access_key="b")


ec2, cloudformation = client("ec2"), client("cloudformation")
vpc = ec2.describe_vpcs()["Vpcs"][0]["VpcId"]
subnets = ",".join(s["SubnetId"] for s in ec2.describe_subnets()["Subnets"])  # one in each zone
with open(template) as f:
    cloudformation.create_stack(
        StackName="fisub",
        TemplateBody=f.read(),
        Capabilities=["CAPABILITY_IAM"],
        Parameters=[{"ParameterKey": "VpcId", "ParameterValue": vpc}, {"ParameterKey": "SubnetIds", "ParameterValue": subnets}],
    )
outputs = {o["OutputKey"]: o["OutputValue"] for o in cloudformation.describe_stacks(StackName="fisub")["Stacks"][0]["Outputs"]}
iam = client("iam")
arn = outputs["UserPolicy"]
version = iam.get_policy(PolicyArn=arn)["Policy"]["DefaultVersionId"]
document = iam.get_policy_version(PolicyArn=arn, VersionId=version)["PolicyVersion"]["Document"]
outputs["policy"] = json.dumps(document)
print(json.dumps(outputs))
