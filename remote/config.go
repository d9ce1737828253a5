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
	// Bill is what one job is paid for, on top of its limit what it takes to begin and to end.
	Bill() Bill
	// Open makes the provider of the table [remote.name]. It asks no host.
	Open(name string) (Provider, error)
}

// Common are the keys that every kind of provider has, beside its own.
type Common struct {
	Provider string // kind; the table's name where the key is missing
	GPU      string
	Limit    time.Duration // 0 where the table does not say
	Price    float64       // 0 where the table does not say
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
		{Name: "price", To: &c.Price, Absent: "no price is shown",
			Help: "USD for one GPU and hour; for the plan, for `--max-cost` and for what `ls` shows"},
	}
}

// toEnd is what the agent may take to end a job at its limit.
const toEnd = time.Minute

// Bill is that of a job that is paid for its GPU alone.
func (c *Common) Bill() Bill { return c.Held("GPU", 1, toEnd) }

// Held is the bill for n GPUs that are held for beyond beside the job's own time; what is their name.
func (c *Common) Held(what string, n int, beyond time.Duration) Bill {
	return Bill{{For: what, Hourly: float64(n) * c.Price, Key: "price", Beyond: beyond}}
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
	if !(s.Price >= 0 && s.Price < 1e6) {
		t.Fault("price", "", "%v is no price in USD per GPU and hour", s.Price)
	}
	c.Check(t)
	return t.Err()
}
