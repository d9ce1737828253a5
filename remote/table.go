package remote

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"fisub/internal/trace"
)

// A Table reads the TOML table [remote.NAME] strictly. Each method gives the value of a key, or def where the key is missing
// or its value is not of the type; Err tells all that was wrong, when every key has been asked for. A Table is used by one
// goroutine.
type Table struct {
	name   string
	values map[string]any
	asked  map[string]bool
	faults []error
}

// NewTable returns a Table over the values of [remote.name].
func NewTable(name string, values map[string]any) *Table {
	t := &Table{name: name, values: values, asked: map[string]bool{}}
	t.common()
	return t
}

// Common are the keys that every provider has, beside its own.
type Common struct {
	Provider string        // kind; the table's name where the key is missing
	GPU      string        // "b200"; "" where the table does not say
	Limit    time.Duration // of a job; 0 where the table does not say
	Price    float64       // USD for one GPU and hour; 0 where the table does not say
}

// Common gives the keys that every provider has.
func (t *Table) Common() Common {
	faults := len(t.faults)
	defer func() { t.faults = t.faults[:faults] }() // NewTable has told them
	return t.common()
}

func (t *Table) common() Common {
	c := Common{Provider: t.String("provider", t.name), GPU: t.String("gpu", ""), Limit: t.Duration("limit", 0), Price: t.Float("price", 0)}
	if c.Limit < 0 {
		t.Fault("limit", "must be above zero")
	}
	if !(c.Price >= 0 && c.Price < 1e6) {
		t.Fault("price", "%v is no price in USD per GPU and hour", c.Price)
	}
	return c
}

// Name is that of the table: "lab" of [remote.lab].
func (t *Table) Name() string { return t.name }

// Has tells whether the key is there.
func (t *Table) Has(key string) bool {
	t.asked[key] = true
	_, ok := t.values[key]
	return ok
}

// String gives a string.
func (t *Table) String(key, def string) string { return get(t, key, def, "a string") }

// Bool gives true or false.
func (t *Table) Bool(key string, def bool) bool { return get(t, key, def, "true or false") }

// Int gives a whole number. Its range is the caller's to check.
func (t *Table) Int(key string, def int) int { return int(get(t, key, int64(def), "a whole number")) }

// Float gives a number, also where it is written as a whole one.
func (t *Table) Float(key string, def float64) float64 {
	if n, ok := t.values[key].(int64); ok {
		t.asked[key] = true
		return float64(n)
	}
	return get(t, key, def, "a number")
}

// Duration gives a length of time, which is written as a string: "30m", "1h30m".
func (t *Table) Duration(key string, def time.Duration) time.Duration {
	if !t.Has(key) {
		return def
	}
	text, ok := t.values[key].(string)
	if d, err := time.ParseDuration(text); ok && err == nil {
		return d
	}
	t.Fault(key, `want a time such as "30m", got %s`, show(t.values[key]))
	return def
}

// Strings gives a list of strings.
func (t *Table) Strings(key string, def []string) []string {
	return list(t, key, def, "a list of strings", func(v any) (string, bool) { s, ok := v.(string); return s, ok })
}

// Ints gives a list of whole numbers.
func (t *Table) Ints(key string, def []int) []int {
	return list(t, key, def, "a list of whole numbers", func(v any) (int, bool) { n, ok := v.(int64); return int(n), ok })
}

func get[T any](t *Table, key string, def T, want string) T {
	if !t.Has(key) {
		return def
	}
	v, ok := t.values[key].(T)
	if !ok {
		t.Fault(key, "want %s, got %s", want, show(t.values[key]))
		return def
	}
	return v
}

func list[T any](t *Table, key string, def []T, want string, item func(any) (T, bool)) []T {
	if !t.Has(key) {
		return def
	}
	values, ok := t.values[key].([]any)
	all := make([]T, len(values))
	for i, v := range values {
		if all[i], ok = item(v); !ok {
			break
		}
	}
	if !ok {
		t.Fault(key, "want %s, got %s", want, show(t.values[key]))
		return def
	}
	return all
}

// show gives a value as far as an error needs it, without the content of tables.
func show(v any) string {
	switch v := v.(type) {
	case string:
		return fmt.Sprintf("%.60q", v)
	case map[string]any:
		return "a table"
	}
	return fmt.Sprintf("%.60s", fmt.Sprint(v))
}

// Fault adds what the caller finds wrong with a key.
func (t *Table) Fault(key, format string, args ...any) {
	t.faults = append(t.faults, fmt.Errorf("remote.%s.%s: %s", t.name, key, fmt.Sprintf(format, args...)))
}

// Err joins all faults: values of another type, what Fault was told, and the keys that nobody asked for.
func (t *Table) Err() error {
	faults := slices.Clone(t.faults)
	known := slices.Sorted(maps.Keys(t.asked))
	for _, key := range slices.Sorted(maps.Keys(t.values)) {
		if t.asked[key] {
			continue
		}
		err := fmt.Errorf("remote.%s.%s: unknown key", t.name, key)
		if near := trace.Nearest(key, known); len(near) > 0 {
			err = fmt.Errorf("remote.%s.%s: unknown key; did you mean %s?", t.name, key, near[0])
		}
		faults = append(faults, err)
	}
	return errors.Join(faults...)
}
