package config

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"
)

// A Key describes a key of a table. Decoding, faults and documentation all use this description.
type Key struct {
	Name     string
	To       any      // destination: *string, *bool, *int, *float64, *time.Duration, *[]string or *[]int
	Default  any      // value of To's type for a missing key; nil leaves To unchanged
	Absent   string   // describes the effect of a missing key, if Default does not
	Required bool     // the key must be present
	Blank    bool     // may be ""
	OneOf    []string // all valid values
	Form     string   // describes the valid values
	Example  string   // example value, as TOML
	Help     string   // Markdown
}

// Type describes the type of the value.
func (k Key) Type() string {
	name, _ := k.kind()
	return name
}

// kind describes the type of the value. set stores a TOML value in To, or for nil the default, and reports whether the
// type is right.
func (k Key) kind() (name string, set func(v any) bool) {
	switch to := k.To.(type) {
	case *string:
		return "a string", store(to, k.Default, is[string])
	case *bool:
		return "true or false", store(to, k.Default, is[bool])
	case *int:
		return "a whole number", store(to, k.Default, whole)
	case *float64:
		return "a number", store(to, k.Default, number)
	case *time.Duration:
		return `a time such as "30m"`, store(to, k.Default, duration)
	case *[]string:
		return "a list of strings", store(to, k.Default, list(is[string]))
	case *[]int:
		return "a list of whole numbers", store(to, k.Default, list(whole))
	}
	panic(fmt.Sprintf("config: key %s: unsupported type %T", k.Name, k.To))
}

func store[T any](to *T, def any, read func(any) (T, bool)) func(v any) bool {
	return func(v any) bool {
		if v == nil && def != nil {
			*to = def.(T)
		}
		got, ok := read(v)
		if ok {
			*to = got
		}
		return ok
	}
}

// Missing describes the effect of a missing key, or "".
func (k Key) Missing() string {
	switch def := k.Default.(type) {
	case nil:
		if k.Required {
			return "required"
		}
		return k.Absent
	case time.Duration:
		text := def.String()
		for _, zero := range []string{"m0s", "h0m"} { // in "30m0s", "2h0m0s"
			if strings.HasSuffix(text, zero) {
				text = text[:len(text)-2]
			}
		}
		return text
	default:
		return fmt.Sprint(def)
	}
}

func is[T any](v any) (T, bool) { t, ok := v.(T); return t, ok }

func whole(v any) (int, bool) { n, ok := v.(int64); return int(n), ok }

func number(v any) (float64, bool) {
	if n, ok := v.(int64); ok {
		return float64(n), true
	}
	return is[float64](v)
}

func duration(v any) (time.Duration, bool) {
	text, _ := v.(string)
	d, err := time.ParseDuration(text)
	return d, err == nil
}

func list[T any](item func(any) (T, bool)) func(any) ([]T, bool) {
	return func(v any) ([]T, bool) {
		items, ok := v.([]any)
		all := make([]T, len(items))
		for i := 0; ok && i < len(items); i++ {
			all[i], ok = item(items[i])
		}
		return all, ok
	}
}

// A Table is one table of a config. The owner of its keys decodes it.
type Table struct {
	file   *Config
	name   string // "build", "remote.lab"
	values map[string]any
	faults []*Fault
}

// NewTable returns a table that is not in a file, with TOML values: string, int64, float64, bool, or []any of these.
func NewTable(name string, values map[string]any) *Table {
	return &Table{file: &Config{}, name: name, values: values}
}

// Name returns the name of the table: "build", "remote.lab".
func (t *Table) Name() string { return t.name }

// Text returns the value of a string key, else "".
func (t *Table) Text(key string) string {
	text, _ := t.values[key].(string)
	return text
}

// Has reports whether the table contains key.
func (t *Table) Has(key string) bool { return t.values[key] != nil }

// maxFaults limits the faults of a table, and the unknown top-level keys. maxKeys limits the keys and tables of a file:
// the TOML decoder takes quadratic time.
const maxFaults, maxKeys = 1000, 10_000

// Decode stores the values of keys. It records a fault for each unknown or missing key and each invalid value, up to
// maxFaults. Missing and mistyped values get their defaults.
func (t *Table) Decode(keys []Key) {
	t.faults = nil
	var known []string
	for _, k := range keys {
		known = append(known, k.Name)
		v, ok := t.values[k.Name]
		id := t.name + "." + k.Name
		items, _ := v.([]any)
		kind, set := k.kind()
		set(nil)
		switch {
		case !ok && k.Required:
			t.add("missing-key", k.Name, "add "+k.Name+" = "+k.Example, "missing key %s", id)
		case !ok:
		case !set(v):
			t.add("wrong-type", k.Name, k.mend(v), "%s must be %s, not %s", id, kind, k.got(v))
		case v == "" && !k.Blank:
			t.add("wrong-type", k.Name, "", "%s is empty", id)
		case slices.Contains(items, any("")):
			t.add("wrong-type", k.Name, "", "%s contains an empty string", id)
		case k.OneOf != nil && !slices.Contains(k.OneOf, v.(string)):
			t.oneOf(k, v.(string))
		}
	}
	for _, name := range slices.Sorted(maps.Keys(t.values)) {
		if !slices.Contains(known, name) && len(t.faults) < maxFaults {
			hint, sure := t.unknown(name, known)
			f := t.add("unknown-key", name, hint, "unknown key %s.%s", t.name, name)
			f.Harmless = !sure && (t.name == "solution" || t.name == "build")
		}
	}
}

// mend returns a hint for a value of the wrong type, or "".
func (k Key) mend(v any) string {
	text, quoted := v.(string)
	switch k.To.(type) {
	case *string:
		switch v.(type) {
		case int64, float64, bool:
			return fmt.Sprintf(`write "%v" in quotes`, v)
		}
	case *[]string:
		if quoted && text != "" {
			return "write [" + quote(text) + "]"
		}
	case *bool, *int, *float64:
		if _, err := strconv.ParseFloat(text, 64); quoted && (err == nil || text == "true" || text == "false") {
			return "write " + text + " without quotes"
		}
	}
	return ""
}

func (t *Table) oneOf(k Key, value string) {
	hint := meant(value, k.OneOf)
	if lower := strings.ToLower(value); slices.Contains(k.OneOf, lower) {
		hint = fmt.Sprintf("write %q", lower)
	}
	t.add("unknown-value", k.Name, hint, "%s %q is not one of %s", k.Name, value, strings.Join(k.OneOf, ", "))
}

// unknown returns a hint for an unknown key. sure reports whether the intended key is clear.
func (t *Table) unknown(name string, known []string) (hint string, sure bool) {
	if name == "solution_dir" {
		return `write source_dir = "..." in [build]: a folder below solution/`, true
	}
	if home := t.file.home(name); home != "" && home != t.name {
		return fmt.Sprintf("%s belongs in [%s]", name, home), true
	}
	if hint := meant(name, known); hint != "" {
		return hint, misspelt(name, known)
	}
	return "known here: " + strings.Join(known, ", "), false
}

// Fault records a fault of a key's value. If Decode rejected the value, it has its default.
func (t *Table) Fault(key, hint, format string, args ...any) {
	t.add("", key, hint, "%s.%s: %s", t.name, key, fmt.Sprintf(format, args...))
}

// Match records a fault if a non-empty value does not match re. want describes the form.
func (t *Table) Match(key, value string, re interface{ MatchString(string) bool }, want string) {
	if value != "" && !re.MatchString(value) {
		t.Fault(key, "", "want %s, got %.80q", want, value)
	}
}

// Between records a fault if v is not in from..to, inclusive.
func Between[T cmp.Ordered](t *Table, key string, v, from, to T) {
	if !(v >= from && v <= to) {
		t.Fault(key, "", "want %v to %v, got %v", from, to, v)
	}
}

// add records a fault, unless there are maxFaults already, and returns it.
func (t *Table) add(code, key, hint, format string, args ...any) *Fault {
	if len(t.faults) == maxFaults {
		return &Fault{}
	}
	t.faults = append(t.faults, t.file.Fault(code, t.name+"."+key, hint, format, args...))
	return t.faults[len(t.faults)-1]
}

// Err joins the recorded faults, *Fault values sorted by position.
func (t *Table) Err() error { return joined(t.faults) }

// got describes a value of the wrong type.
func (k Key) got(v any) string {
	switch k.To.(type) {
	case *time.Duration:
		if text, ok := v.(string); ok {
			return fmt.Sprintf("%.60q", text)
		}
	case *[]string, *[]int:
		items, _ := v.([]any)
		_, set := k.kind()
		for i, item := range items {
			if !set([]any{item}) {
				set(nil)
				return fmt.Sprintf("one with %s (item %d)", article(item), i+1)
			}
		}
	}
	return article(v)
}

// article describes the type of a TOML value in prose.
func article(v any) string {
	switch v.(type) {
	case string:
		return "a string"
	case bool:
		return "true or false"
	case int64:
		return "an integer"
	case float64:
		return "a number"
	case map[string]any:
		return "a table"
	case []any:
		return "a list"
	}
	return "a date or time"
}
