package config_test

import (
	"fmt"
	"strings"
	"testing"

	"fisub/internal/config"
)

// Every key is described, and each example is what Parse takes.
func TestKeys(t *testing.T) {
	var text strings.Builder
	for _, s := range new(config.Config).Sections() {
		fmt.Fprintf(&text, "[%s]\n", s.Name)
		for _, k := range s.Keys {
			if k.Help == "" || k.Type() == "" {
				t.Errorf("%s.%s: got help %q", s.Name, k.Name, k.Help)
			}
			if k.Required == (k.Absent != "" || k.Default != nil) && k.Name != "description" {
				t.Errorf("%s.%s: required %v, absent %q, default %v", s.Name, k.Name, k.Required, k.Absent, k.Default)
			}
			fmt.Fprintf(&text, "%s = %s\n", k.Name, k.Example)
		}
	}
	if _, err := config.Parse(config.Name, []byte(text.String())); err != nil {
		t.Errorf("the examples together: %v\n%s", err, text.String())
	}
}
