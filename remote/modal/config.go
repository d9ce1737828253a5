package modal

import (
	"cmp"
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
		{Name: "app", To: &c.App, Default: "fisub", Help: "Modal's app; created if missing"},
		{Name: "environment", To: &c.Environment, Absent: "the profile's", Help: "Modal's environment"},
		{Name: "volume", To: &c.Volume, Absent: "as `app`", Help: "a volume of version 2; created if missing"},
		{Name: "image", To: &c.Image, Default: "debian:13-slim",
			Help: "image of a public registry. It needs sh, find, the core utilities and glibc 2.28 or later, but no CUDA"},
		{Name: "cpu", To: &c.CPU, Default: 4.0,
			Help: "cores of a sandbox, also its limit; billed in addition to the GPU"},
		{Name: "memory", To: &c.Memory, Default: 8192,
			Help: "MiB of a sandbox, also its limit; billed in addition to the GPU"},
		{Name: "regions", To: &c.Regions, Absent: "any",
			Help: "Modal's regions; a restriction costs more and waits longer"},
		{Name: "queue", To: &c.Queue, Default: 30 * time.Minute, Help: "maximum wait of a job for a GPU"},
		{Name: "jobs", To: &c.Jobs, Default: 8, Help: "maximum number of sandboxes; the workspace has its own limit"},
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
	c.Volume = cmp.Or(c.Volume, c.App)
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
