package aws

import "fisub/remote"

// Keys are those of a table of this kind, beside remote.CommonKeys.
var Keys = []remote.Key{
	{Name: "mode", Type: remote.StringKey, Default: "must be there", Meaning: `"batch": a job is one of an AWS Batch queue; "ec2": an instance of its own`},
	{Name: "region", Type: remote.StringKey, Default: "as the AWS tools find it", Meaning: "where the bucket and the hosts are"},
	{Name: "profile", Type: remote.StringKey, Default: "as the AWS tools find it", Meaning: "of ~/.aws/config"},
	{Name: "bucket", Type: remote.StringKey, Default: "must be there", Meaning: "of S3; everything lies in it"},
	{Name: "prefix", Type: remote.StringKey, Default: "fisub/", Meaning: "of all keys in the bucket; several people take a prefix each"},
	{Name: "queue", Type: remote.StringKey, Default: "must be there", Meaning: "batch: the job queue's name or ARN"},
	{Name: "job_definition", Type: remote.StringKey, Default: "must be there", Meaning: "batch: the job definition's name or ARN"},
	{Name: "slots", Type: remote.IntKey, Default: "8", Meaning: "batch: jobs in the queue at a time"},
	{Name: "queue_limit", Type: remote.DurationKey, Default: "2h", Meaning: "batch: how long a job may wait before its links have expired"},
	{Name: "log_group", Type: remote.StringKey, Default: "/aws/batch/job", Meaning: "batch: where CloudWatch keeps what containers say"},
	{Name: "instance_type", Type: remote.StringKey, Default: "p6-b200.48xlarge", Meaning: "ec2: as AWS names it"},
	{Name: "image", Type: remote.StringKey, Default: "must be there", Meaning: "ec2: an image with an NVIDIA driver that runs user data and has curl"},
	{Name: "subnet", Type: remote.StringKey, Default: "of the default VPC", Meaning: "ec2: where instances start"},
	{Name: "security_groups", Type: remote.StringsKey, Default: "of the default VPC", Meaning: "ec2: of the instances"},
	{Name: "capacity_reservation", Type: remote.StringKey, Default: "on demand", Meaning: "ec2: a capacity block or reservation; fisub never buys one"},
	{Name: "spot", Type: remote.BoolKey, Default: "false", Meaning: "ec2: take spot instances"},
	{Name: "instances", Type: remote.IntKey, Default: "1", Meaning: "ec2: at a time, each with one job"},
	{Name: "boot_limit", Type: remote.DurationKey, Default: "20m", Meaning: "ec2: an instance that has not begun with its job by then is given up"},
}
