package config

import (
	"fmt"
	"strings"
	"testing"
)

// Every key of the schema is described, nothing else is, and each example is what Parse takes.
func TestKeys(t *testing.T) {
	tables := map[string][]string{}
	for _, k := range Keys() {
		if k.Meaning == "" || !strings.HasPrefix(k.Example, k.Name+" = ") {
			t.Errorf("%s.%s: got meaning %q and example %q: describe it in abouts", k.Table, k.Name, k.Meaning, k.Example)
		}
		if k.Required == (k.Default != "") && k.Name != "description" {
			t.Errorf("%s.%s: required %v with default %q", k.Table, k.Name, k.Required, k.Default)
		}
		tables[k.Table] = append(tables[k.Table], k.Example)
	}
	for id := range abouts {
		table, name, _ := strings.Cut(id, ".")
		if _, ok := lookup(table, name); !ok {
			t.Errorf("abouts has %s, the schema has not", id)
		}
	}
	var text strings.Builder
	for table, lines := range tables {
		fmt.Fprintf(&text, "[%s]\n%s\n", table, strings.Join(lines, "\n"))
	}
	if _, err := Parse(Name, []byte(text.String())); err != nil {
		t.Errorf("the examples together: %v\n%s", err, text.String())
	}
}
