package nvcc

import (
	"archive/zip"
	"bytes"
	"io/fs"
	"os"
	"path/filepath"
	"testing"
)

// Unpacking a wheel writes nothing outside its folder and creates no links.
func FuzzWheel(f *testing.F) {
	wheel := func(names ...string) []byte {
		var b bytes.Buffer
		z := zip.NewWriter(&b)
		for _, name := range names {
			w, err := z.Create(name)
			if err != nil {
				f.Fatal(err)
			}
			if _, err := w.Write([]byte("x")); err != nil {
				f.Fatal(err)
			}
		}
		if err := z.Close(); err != nil {
			f.Fatal(err)
		}
		return b.Bytes()
	}
	f.Add(wheel(parts[0].from + "a/b"))
	f.Add(wheel(parts[0].from+"../../x", parts[0].from+"a"))
	f.Fuzz(func(t *testing.T, data []byte) {
		parent := t.TempDir()
		file, dir := filepath.Join(parent, "wheel"), filepath.Join(parent, "dir")
		if err := os.WriteFile(file, data, 0o644); err != nil {
			t.Fatal(err)
		}
		_ = unpack(t.Context(), dir, []string{file}, parts, func(string, int64, int64) {})
		entries, _ := os.ReadDir(parent)
		for _, e := range entries {
			if e.Name() != "wheel" && e.Name() != "dir" {
				t.Errorf("%s was written beside the folder", e.Name())
			}
		}
		_ = filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
			if err == nil && !d.IsDir() && !d.Type().IsRegular() {
				t.Errorf("%s is %v", path, d.Type())
			}
			return nil
		})
	})
}
