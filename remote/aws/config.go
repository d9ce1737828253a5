package aws

import (
	"path"
	"strings"
	"time"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/remote"
)

// A Config is a table [remote.NAME] of this kind.
type Config struct {
	remote.Common
	Region        string
	Profile       string
	Bucket        string
	Prefix        string // "" or ends with "/"
	Queue         string
	JobDefinition string
	Slots         int
	QueueLimit    time.Duration
	LogGroup      string
}

// Keys returns the keys of this kind.
func (c *Config) Keys() []config.Key {
	return []config.Key{
		{Name: "region", To: &c.Region, Absent: "as the AWS tools find it", Help: "region of the bucket and the hosts"},
		{Name: "profile", To: &c.Profile, Absent: "as the AWS tools find it", Help: "of ~/.aws/config"},
		{Name: "bucket", To: &c.Bucket, Required: true, Example: `"fisub-bucket-..."`, Help: "S3 bucket for everything"},
		{Name: "prefix", To: &c.Prefix, Default: "fisub/", Blank: true,
			Help: "prefix of all keys in the bucket; use one for each person"},
		{Name: "queue", To: &c.Queue, Required: true, Example: `"gpus"`, Help: "name or ARN of the job queue"},
		{Name: "job_definition", To: &c.JobDefinition, Required: true, Example: `"fisub"`,
			Help: "name or ARN of the job definition"},
		{Name: "slots", To: &c.Slots, Default: 8, Help: "maximum number of jobs in the queue"},
		{Name: "queue_limit", To: &c.QueueLimit, Default: 2 * time.Hour,
			Help: "maximum wait of a job; then its links expire"},
		{Name: "log_group", To: &c.LogGroup, Default: "/aws/batch/job", Help: "CloudWatch log group of the containers"},
	}
}

var (
	bucketName = plain.NewForm(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixName = plain.NewForm(`^([A-Za-z0-9._-]+/)*$`)
	oneWord    = plain.NewForm(`^\S+$`)
)

func validPrefix(s string) bool {
	return len(s) <= 200 && prefixName.MatchString(s) && (s == "" || path.Clean("/"+s)+"/" == "/"+s)
}

const week = 7 * 24 * time.Hour

// Check reports invalid values.
func (c *Config) Check(t *config.Table) {
	if c.Prefix = strings.TrimSuffix(c.Prefix, "/"); c.Prefix != "" {
		c.Prefix += "/"
	}
	t.Match("bucket", c.Bucket, bucketName, "the name of an S3 bucket")
	if !validPrefix(c.Prefix) {
		t.Fault("prefix", "", `want letters, digits and "-._" with "/" between, got %.80q`, c.Prefix)
	}
	t.Match("queue", c.Queue, oneWord, "the name or ARN of a job queue")
	t.Match("job_definition", c.JobDefinition, oneWord, "the name or ARN of a job definition")
	config.Between(t, "slots", c.Slots, 1, 1000)
	config.Between(t, "queue_limit", c.QueueLimit, time.Minute, week/2)
}

// Open returns the provider.
func (c *Config) Open(name string) (remote.Provider, error) { return New(name, *c), nil }
