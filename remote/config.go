package remote

import (
	"slices"
	"strings"
	"time"

	"fisub/internal/config"
)

// A Config holds the values of a table [remote.NAME]. Each kind of provider has its own, which embeds Common.
type Config interface {
	// Keys returns the keys of the kind other than those of Common.
	Keys() []config.Key
	// Shared returns the values of the common keys.
	Shared() *Common
	// Check records invalid values in t. Types are already checked.
	Check(t *config.Table)
	// Open returns the provider of the table [remote.name]. It contacts no host.
	Open(name string) (Provider, error)
}

// Common holds the values of the keys that all kinds share.
type Common struct {
	Provider string // kind; defaults to the table's name
	GPU      string
	Limit    time.Duration // 0 if the table does not set it
}

// Shared returns c.
func (c *Common) Shared() *Common { return c }

// Wanted returns the kind of GPU that jobs ask for, or "".
func (c *Common) Wanted() string {
	if kind := strings.ToLower(c.GPU); kind != "none" {
		return kind
	}
	return ""
}

// CommonKeys returns the keys of Common.
func (c *Common) CommonKeys() []config.Key {
	return []config.Key{
		{Name: "provider", To: &c.Provider, Absent: "the table's name",
			Help: "kind of the provider; see the sections below"},
		{Name: "gpu", To: &c.GPU, Absent: "`--gpu`",
			Help: `kind of GPU: "b200", "h200", ..., or "none" for the virtual GPU`},
		{Name: "limit", To: &c.Limit, Absent: "30m", Help: `time limit of a job, enforced on its host: "30m"`},
	}
}

// CheckGPUs records invalid and duplicate ordinals of the key gpus in t.
func CheckGPUs(t *config.Table, gpus []int) {
	for i, n := range gpus {
		if n < 0 || n > 1024 {
			t.Fault("gpus", "", "%d is not a GPU ordinal", n)
		} else if slices.Contains(gpus[:i], n) {
			t.Fault("gpus", "", "duplicate GPU %d", n)
		}
	}
}

// Kind returns the kind of provider of a table [remote.NAME], by default NAME.
func Kind(t *config.Table) string {
	if kind := t.Text("provider"); kind != "" {
		return kind
	}
	return strings.TrimPrefix(t.Name(), "remote.")
}

// Decode reads the table into c. Its error joins all faults, as *config.Fault values.
func Decode(t *config.Table, c Config) error {
	s := c.Shared()
	t.Decode(append(s.CommonKeys(), c.Keys()...))
	s.Provider = Kind(t)
	if t.Has("limit") && s.Limit <= 0 {
		t.Fault("limit", "", "must be above zero")
	}
	c.Check(t)
	return t.Err()
}
