package config_test

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"fisub/internal/config"
)

// Every key is documented, and Parse accepts each example.
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

func TestMissing(t *testing.T) {
	for want, d := range map[string]time.Duration{"30m": 30 * time.Minute, "5m": 5 * time.Minute, "2h": 2 * time.Hour,
		"1h30m": 90 * time.Minute, "1m30s": 90 * time.Second, "10s": 10 * time.Second} {
		if got := (config.Key{Default: d}).Missing(); got != want {
			t.Errorf("%v: got %s, want %s", d, got, want)
		}
	}
}
