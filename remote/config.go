package remote

import (
	"slices"
	"strings"
	"time"

	"fisub/internal/config"
)

// A Config is what a table [remote.NAME] says. Each kind of provider has its own, which embeds Common.
type Config interface {
	// CommonKeys are those that every kind has.
	CommonKeys() []config.Key
	// Keys are those of the kind beside them.
	Keys() []config.Key
	// Shared gives the values of the common keys.
	Shared() *Common
	// Check notes in t what is wrong with values that are of their types.
	Check(t *config.Table)
	// Open makes the provider of the table [remote.name]. It asks no host.
	Open(name string) (Provider, error)
}

// Common are the keys that every kind of provider has, beside its own.
type Common struct {
	Provider string // kind; the table's name where the key is missing
	GPU      string
	Limit    time.Duration // 0 if the table does not set it
}

// Shared gives c.
func (c *Common) Shared() *Common { return c }

// Wanted is the kind of GPU that jobs ask for: "" where they need none, or the table does not say.
func (c *Common) Wanted() string {
	if kind := strings.ToLower(c.GPU); kind != "none" {
		return kind
	}
	return ""
}

// CommonKeys are those of Common.
func (c *Common) CommonKeys() []config.Key {
	return []config.Key{
		{Name: "provider", To: &c.Provider, Absent: "the table's name",
			Help: "kind of the provider, as the sections below are called"},
		{Name: "gpu", To: &c.GPU, Absent: "`--gpu`", Help: `kind of GPU: "b200", "h200", ..., "none" for the emulator`},
		{Name: "limit", To: &c.Limit, Absent: "30m", Help: `a job is ended on its host after this time: "30m"`},
	}
}

// CheckGPUs finds what is wrong with the ordinals of the key gpus.
func CheckGPUs(t *config.Table, gpus []int) {
	for i, n := range gpus {
		if n < 0 || n > 1024 {
			t.Fault("gpus", "", "%d is no ordinal of a GPU", n)
		} else if slices.Contains(gpus[:i], n) {
			t.Fault("gpus", "", "%d is there twice", n)
		}
	}
}

// Kind is that of the provider of a table [remote.NAME]: NAME, where the table does not say.
func Kind(t *config.Table) string {
	if kind := t.Text("provider"); kind != "" {
		return kind
	}
	return strings.TrimPrefix(t.Name(), "remote.")
}

// Decode reads the table into c. Its error joins all that is wrong with it, as *config.Fault values.
func Decode(t *config.Table, c Config) error {
	t.Decode(append(c.CommonKeys(), c.Keys()...))
	s := c.Shared()
	s.Provider = Kind(t)
	if t.Has("limit") && s.Limit <= 0 {
		t.Fault("limit", "", "must be above zero")
	}
	c.Check(t)
	return t.Err()
}
