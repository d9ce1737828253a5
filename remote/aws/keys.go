package aws

import "fisub/remote"

// Keys are those of a table of this kind, beside remote.CommonKeys.
var Keys = []remote.Key{
	{Name: "region", Type: remote.StringKey, Default: "as the AWS tools find it", Meaning: "where the bucket and the hosts are"},
	{Name: "profile", Type: remote.StringKey, Default: "as the AWS tools find it", Meaning: "of ~/.aws/config"},
	{Name: "bucket", Type: remote.StringKey, Default: "must be there", Meaning: "of S3; everything lies in it"},
	{Name: "prefix", Type: remote.StringKey, Default: "fisub/", Meaning: "of all keys in the bucket; several people take a prefix each"},
	{Name: "queue", Type: remote.StringKey, Default: "must be there", Meaning: "the job queue's name or ARN"},
	{Name: "job_definition", Type: remote.StringKey, Default: "must be there", Meaning: "the job definition's name or ARN"},
	{Name: "slots", Type: remote.IntKey, Default: "8", Meaning: "jobs in the queue at a time"},
	{Name: "queue_limit", Type: remote.DurationKey, Default: "2h", Meaning: "how long a job may wait before its links have expired"},
	{Name: "log_group", Type: remote.StringKey, Default: "/aws/batch/job", Meaning: "where CloudWatch keeps what containers say"},
}
