package loopback

import (
	"path/filepath"

	"fisub/internal/config"
	"fisub/remote"
)

// A Config is a table [remote.NAME] of this kind.
type Config struct {
	remote.Common
	GPUs    []int // one place each; if empty, Slots counts
	Slots   int   // number of places without a GPU
	Workdir string
}

// Keys returns the keys of this kind.
func (c *Config) Keys() []config.Key {
	return []config.Key{
		{Name: "gpus", To: &c.GPUs, Absent: "none", Help: "GPU ordinals on this machine; each is a place"},
		{Name: "slots", To: &c.Slots, Default: 1, Help: "maximum number of jobs, in a table without `gpus`"},
		{Name: "workdir", To: &c.Workdir, Absent: "`remote/loopback` in fisub's cache",
			Help: "folder for the bundle's files and the jobs, absolute"},
	}
}

// Check reports invalid values.
func (c *Config) Check(t *config.Table) {
	config.Between(t, "slots", c.Slots, 1, 256)
	if len(c.GPUs) > 0 && t.Has("slots") {
		t.Fault("slots", "each of gpus is a place: remove slots", "cannot be combined with gpus")
	}
	remote.CheckGPUs(t, c.GPUs)
	if c.Workdir != "" && !filepath.IsAbs(c.Workdir) {
		t.Fault("workdir", "", "%.200q is not absolute", c.Workdir)
	}
}

// Open returns the provider.
func (c *Config) Open(name string) (remote.Provider, error) { return New(name, *c) }
