package aws

import (
	"regexp"
	"strings"
	"time"

	"fisub/remote"
)

// A Config is the table [remote.NAME] of an AWS provider.
type Config struct {
	Mode    string // "batch" or "ec2"
	Region  string // "": as the AWS tools find it
	Profile string // "": as the AWS tools find it
	Bucket  string
	Prefix  string // of all keys; ends with "/" where it is not empty

	// Of mode batch.
	Queue         string
	JobDefinition string
	Slots         int           // jobs in the queue at a time
	QueueLimit    time.Duration // how long a job may wait in the queue
	LogGroup      string

	// Of mode ec2.
	InstanceType        string
	Image               string // "ami-...", or "resolve:ssm:" and the name of a parameter
	Subnet              string
	SecurityGroups      []string
	CapacityReservation string
	Spot                bool
	Instances           int           // at a time, each with one job
	BootLimit           time.Duration // within which an instance must have begun with its job

	gpu string
}

var (
	bucketName    = regexp.MustCompile(`^[a-z0-9][a-z0-9.-]{1,61}[a-z0-9]$`)
	prefixName    = regexp.MustCompile(`^([A-Za-z0-9._-]+/)*$`)
	imageName     = regexp.MustCompile(`^(ami-[0-9a-f]{8,17}|resolve:ssm:[A-Za-z0-9/._:-]+)$`)
	typeName      = regexp.MustCompile(`^[a-z0-9-]+\.[a-z0-9-]+$`)
	reservationID = regexp.MustCompile(`^cr-[0-9a-f]{8,17}$`)
)

func validPrefix(s string) bool {
	return len(s) <= 200 && prefixName.MatchString(s) && !strings.Contains("/"+s, "/../") && !strings.Contains("/"+s, "/./")
}

const week = 7 * 24 * time.Hour

// read checks the table whole; its error joins all faults.
func read(name string, table map[string]any) (Config, error) {
	t := remote.NewTable(name, table)
	c := Config{
		Mode:    t.String("mode", ""),
		Region:  t.String("region", ""),
		Profile: t.String("profile", ""),
		Bucket:  t.String("bucket", ""),
		Prefix:  t.String("prefix", "fisub/"),
		gpu:     t.Common().GPU,
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
	span := func(key string, v, lo, hi time.Duration) {
		if v < lo || v > hi {
			t.Fault(key, "want %v to %v, got %v", lo, hi, v)
		}
	}
	count := func(key string, v int) {
		if v < 1 || v > 1000 {
			t.Fault(key, "want 1 to 1000, got %d", v)
		}
	}
	switch c.Mode {
	case "batch":
		c.Queue = t.String("queue", "")
		c.JobDefinition = t.String("job_definition", "")
		c.Slots = t.Int("slots", 8)
		c.QueueLimit = t.Duration("queue_limit", 2*time.Hour)
		c.LogGroup = t.String("log_group", "/aws/batch/job")
		need("queue", c.Queue, some, "the name or ARN of a job queue")
		need("job_definition", c.JobDefinition, some, "the name or ARN of a job definition")
		count("slots", c.Slots)
		span("queue_limit", c.QueueLimit, time.Minute, week/2)
	case "ec2":
		c.InstanceType = t.String("instance_type", "p6-b200.48xlarge")
		c.Image = t.String("image", "")
		c.Subnet = t.String("subnet", "")
		c.SecurityGroups = t.Strings("security_groups", nil)
		c.CapacityReservation = t.String("capacity_reservation", "")
		c.Spot = t.Bool("spot", false)
		c.Instances = t.Int("instances", 1)
		c.BootLimit = t.Duration("boot_limit", 20*time.Minute)
		need("image", c.Image, imageName, `an image with an NVIDIA driver, "ami-..." or "resolve:ssm:/..."`)
		if !typeName.MatchString(c.InstanceType) {
			t.Fault("instance_type", `want a type such as "p6-b200.48xlarge", got %.80q`, c.InstanceType)
		}
		if c.CapacityReservation != "" && !reservationID.MatchString(c.CapacityReservation) {
			t.Fault("capacity_reservation", `want "cr-...", got %.80q`, c.CapacityReservation)
		}
		if c.Spot && c.CapacityReservation != "" {
			t.Fault("spot", "a capacity reservation has no spot instances")
		}
		count("instances", c.Instances)
		span("boot_limit", c.BootLimit, time.Minute, 2*time.Hour)
	default:
		// The keys of the modes are not told as unknown ones beside this.
		for key := range table {
			t.Has(key)
		}
		t.Fault("mode", `want "batch" or "ec2", got %.80q`, c.Mode)
	}
	return c, t.Err()
}
