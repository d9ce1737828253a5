package nvcc

import (
	"archive/zip"
	"bytes"
	"encoding/binary"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// zipped returns a zip file with these names.
func zipped(t testing.TB, names ...string) []byte {
	var b bytes.Buffer
	z := zip.NewWriter(&b)
	for _, name := range names {
		w, err := z.Create(name)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := w.Write([]byte("x")); err != nil {
			t.Fatal(err)
		}
	}
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Unpacking a wheel writes nothing outside its folder and creates no links.
func TestWheel(t *testing.T) {
	link := zipped(t, parts[0].from+"link")
	i := bytes.LastIndex(link, []byte("PK\x01\x02")) // its entry in the directory: made by Unix, with a mode
	link[i+5] = 3
	binary.LittleEndian.PutUint32(link[i+38:], 0o120777<<16)
	for _, data := range [][]byte{zipped(t, parts[0].from+"a/b", "other/x"), zipped(t, parts[0].from+"../../x", parts[0].from+"a"),
		zipped(t, parts[0].from+"a", parts[0].from+"a/b"), link, []byte("x")} {
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
	}
}

// The entries of a wheel are installed as regular files below the folder, in one of its parts or where a ".." in a part
// leads. All is in memory: files would make it far slower.
func FuzzWheel(f *testing.F) {
	f.Add(zipped(f, parts[0].from+"a/b"))
	f.Add(zipped(f, parts[0].from+"../../x", parts[0].from+"a"))
	f.Add(zipped(f, parts[2].from, parts[1].from+"../a", "other/x"))
	f.Fuzz(func(t *testing.T, data []byte) {
		z, err := zip.NewReader(bytes.NewReader(data), int64(len(data)))
		if err != nil {
			return
		}
		for _, f := range z.File {
			name, err := installed(f, parts)
			if err != nil || name == "" {
				continue
			}
			at := filepath.Join("/parent/dir", name)
			if !strings.HasPrefix(at, "/parent/dir/") || !f.Mode().IsRegular() {
				t.Fatalf("%q, %v: got %s", f.Name, f.Mode(), at)
			}
		}
	})
}
