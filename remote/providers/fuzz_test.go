package providers

import (
	"fmt"
	"testing"

	"fisub/internal/config"
)

// If a table [remote.NAME] is rejected, the errors have positions in the file.
func FuzzTable(f *testing.F) {
	for kind, keys := range Keys() {
		text := "[remote.x]\nprovider = \"" + kind + "\"\n"
		for _, k := range keys {
			if k.Example != "" {
				text += fmt.Sprintf("%s = %s\n", k.Name, k.Example)
			}
		}
		f.Add([]byte(text))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		cfg, err := config.Parse("config.toml", append([]byte(minimal), data...))
		if err != nil {
			return
		}
		for name, table := range cfg.Remote {
			if _, err := Decode(table); err != nil && len(config.Faults(err)) == 0 {
				t.Errorf("%s: got %v, want faults", name, err)
			}
		}
	})
}

const minimal = `[solution]
name = "n"
definition = "d"
author = "a"
[build]
language = "cuda"
entry_point = "k.cu::k"
`
