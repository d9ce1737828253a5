package aws

import (
	"regexp"
	"strings"
	"time"

	"fisub/remote"
)

// A Config is the table [remote.NAME] of an AWS provider.
type Config struct {
	Region  string // "": as the AWS tools find it
	Profile string // "": as the AWS tools find it
	Bucket  string
	Prefix  string // of all keys; ends with "/" where it is not empty

	Queue         string
	JobDefinition string
	Slots         int           // jobs in the queue at a time
	QueueLimit    time.Duration // how long a job may wait in the queue
	LogGroup      string
}

var (
	bucketName = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixName = regexp.MustCompile(`^([A-Za-z0-9._-]+/)*$`)
)

func validPrefix(s string) bool {
	return len(s) <= 200 && prefixName.MatchString(s) && !strings.Contains("/"+s, "/../") && !strings.Contains("/"+s, "/./")
}

const week = 7 * 24 * time.Hour

// read checks the table whole; its error joins all faults.
func read(name string, table map[string]any) (Config, error) {
	t := remote.NewTable(name, table)
	c := Config{
		Region:        t.String("region", ""),
		Profile:       t.String("profile", ""),
		Bucket:        t.String("bucket", ""),
		Prefix:        t.String("prefix", "fisub/"),
		Queue:         t.String("queue", ""),
		JobDefinition: t.String("job_definition", ""),
		Slots:         t.Int("slots", 8),
		QueueLimit:    t.Duration("queue_limit", 2*time.Hour),
		LogGroup:      t.String("log_group", "/aws/batch/job"),
	}
	c.Prefix = strings.TrimSuffix(c.Prefix, "/")
	if c.Prefix != "" {
		c.Prefix += "/"
	}
	need := func(key, value string, form *regexp.Regexp, want string) {
		switch {
		case !t.Has(key):
			t.Fault(key, "missing; want %s", want)
		case !form.MatchString(value):
			t.Fault(key, "want %s, got %.80q", want, value)
		}
	}
	some := regexp.MustCompile(`^\S+$`)
	need("bucket", c.Bucket, bucketName, "the name of an S3 bucket")
	if !validPrefix(c.Prefix) {
		t.Fault("prefix", "want letters, digits and \"-._\" with \"/\" between, got %.80q", c.Prefix)
	}
	need("queue", c.Queue, some, "the name or ARN of a job queue")
	need("job_definition", c.JobDefinition, some, "the name or ARN of a job definition")
	if c.Slots < 1 || c.Slots > 1000 {
		t.Fault("slots", "want 1 to 1000, got %d", c.Slots)
	}
	if c.QueueLimit < time.Minute || c.QueueLimit > week/2 {
		t.Fault("queue_limit", "want %v to %v, got %v", time.Minute, week/2, c.QueueLimit)
	}
	return c, t.Err()
}
