package project

import (
	"path/filepath"
	"testing"
)

func TestProjectPaths(t *testing.T) {
	abs := filepath.Join(t.TempDir(), "c.toml")
	for _, tc := range []struct {
		p            Project
		config, root string
	}{
		{Project{}, "config.toml", "."},
		{Project{Dir: "a"}, "a/config.toml", "a"},
		{Project{Dir: "a", Config: "b/c.toml"}, "a/b/c.toml", "a/b"},
		{Project{Dir: "a", Config: abs}, abs, filepath.Dir(abs)},
	} {
		if config, root := tc.p.ConfigPath(), tc.p.Root(); config != tc.config || root != tc.root {
			t.Errorf("%+v: got %s, %s, want %s, %s", tc.p, config, root, tc.config, tc.root)
		}
	}
}
