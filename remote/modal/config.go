package modal

import (
	"time"

	"fisub/internal/config"
	"fisub/internal/plain"
	"fisub/remote"
)

// A Config is a table [remote.NAME] of this kind.
type Config struct {
	remote.Common
	App         string
	Environment string
	Volume      string
	Image       string
	CPU         float64
	Memory      int // MiB
	Regions     []string
	Queue       time.Duration
	Jobs        int
}

// Keys returns the keys of this kind.
func (c *Config) Keys() []config.Key {
	return []config.Key{
		{Name: "app", To: &c.App, Default: "fisub", Help: "Modal's app; made when it is missing"},
		{Name: "environment", To: &c.Environment, Absent: "the profile's", Help: "Modal's environment"},
		{Name: "volume", To: &c.Volume, Absent: "as `app`", Help: "a volume of version 2; made when it is missing"},
		{Name: "image", To: &c.Image, Default: "debian:13-slim",
			Help: "of a public registry. Modal puts the driver in and the bundle brings the rest, so it needs no CUDA, only " +
				"sh, tar and the core utilities, and a C library that is not older than 2.28"},
		{Name: "cpu", To: &c.CPU, Default: 4.0,
			Help: "cores of a job's sandbox, which gets no more; Modal bills them beside the GPU"},
		{Name: "memory", To: &c.Memory, Default: 8192,
			Help: "MiB of a job's sandbox, which gets no more; Modal bills them beside the GPU"},
		{Name: "regions", To: &c.Regions, Absent: "any", Help: "Modal's regions. Naming some costs more, and waits longer"},
		{Name: "queue", To: &c.Queue, Default: 30 * time.Minute,
			Help: "how long a job may wait for a GPU; then it is given up"},
		{Name: "jobs", To: &c.Jobs, Default: 8, Help: "sandboxes at a time; a workspace has a limit of its own"},
	}
}

var (
	nameForm  = plain.NewForm(`^[A-Za-z0-9][A-Za-z0-9._-]{0,62}$`)
	imageForm = plain.NewForm(`^[!-~]+$`)
)

// Check reports invalid values.
func (c *Config) Check(t *config.Table) {
	const name = "a name in Modal: letters, digits, '.', '_' and '-', at most 63"
	t.Match("app", c.App, nameForm, name)
	t.Match("environment", c.Environment, nameForm, name)
	t.Match("volume", c.Volume, nameForm, name)
	if c.Volume == "" {
		c.Volume = c.App
	}
	t.Match("image", c.Image, imageForm, "an image of a registry")
	config.Between(t, "cpu", c.CPU, 0.125, 256)
	config.Between(t, "memory", c.Memory, 128, 1<<21)
	for _, r := range c.Regions {
		t.Match("regions", r, nameForm, "the name of a region")
	}
	config.Between(t, "queue", c.Queue, time.Second, longest)
	config.Between(t, "jobs", c.Jobs, 1, 1000)
}

// Open returns the provider.
func (c *Config) Open(name string) (remote.Provider, error) { return New(name, *c) }
