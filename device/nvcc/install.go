package nvcc

import (
	"archive/zip"
	"bytes"
	"context"
	"crypto/sha256"
	_ "embed"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"time"

	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/hint"
)

//go:embed toolchain.txt
var pinned string

// ErrNoPip is Install's error if python3 or its module pip is missing.
var ErrNoPip = hint.Wrap(errors.New("toolchain: missing python3 with pip"),
	"apt-get install python3-pip, or install a CUDA toolkit and apache-tvm-ffi yourself")

// A Component is one pinned package of the toolchain.
type Component struct {
	Name    string
	Version string
	Bytes   int64 // of its download
	hashes  []string
	line    string
	tag     string // Python tag, such as "cp312", if wheels depend on the Python version
}

// Components lists the packages that Install fetches for this processor.
func Components() []Component { return components(pinned) }

func components(pinned string) []Component {
	var all []Component
	for line := range strings.Lines(pinned) {
		requirement, comment, _ := strings.Cut(line, "#")
		fields := strings.Fields(requirement)
		if len(fields) == 0 {
			continue
		}
		c := Component{line: strings.TrimSpace(requirement)}
		c.Name, c.Version, _ = strings.Cut(fields[0], "==")
		for _, f := range fields[1:] {
			c.hashes = append(c.hashes, strings.TrimPrefix(f, "--hash=sha256:"))
		}
		for _, f := range strings.Fields(comment) {
			if size, ok := strings.CutPrefix(f, machine()+"="); ok {
				c.Bytes, _ = strconv.ParseInt(size, 10, 64)
			} else if strings.HasPrefix(f, "cp") {
				c.tag = f
			}
		}
		all = append(all, c)
	}
	return all
}

// Installed reports whether the pinned components are below root, and returns their folder.
func Installed(root string) (dir string, ok bool) { return installedAs(root, toolchainKey()) }

func installedAs(root, key string) (dir string, ok bool) {
	dir = filepath.Join(root, "toolchain", key)
	st, err := os.Stat(dir)
	return dir, err == nil && st.IsDir()
}

func toolchainKey() string { return cache.Key("toolchain 1", machine(), pinned) }

// Install fetches the pinned components with pip, checks their hashes, and unpacks them below root, where Find looks;
// it does nothing if they are there. After an interruption it resumes at the first incomplete component. progress,
// which may be nil, is called from one goroutine at a time with the bytes received of each component, and of "unpack"
// at the end. Without pip the error is ErrNoPip.
func Install(ctx context.Context, root string, progress func(name string, done, total int64)) error {
	if runtime.GOOS != "linux" || (runtime.GOARCH != "amd64" && runtime.GOARCH != "arm64") {
		return fmt.Errorf("toolchain: no components for %s/%s", runtime.GOOS, runtime.GOARCH)
	}
	return install(ctx, root, toolchainKey(), Components(), parts, progress)
}

//go:embed triton.txt
var pinnedTriton string

// Triton returns the pinned package of the contest's Triton for a Python tag such as "cp312"; ok is false if there is
// none.
func Triton(tag string) (c Component, ok bool) {
	all := components(pinnedTriton)
	i := slices.IndexFunc(all, func(c Component) bool { return c.tag == tag })
	if i < 0 {
		return Component{Name: all[0].Name, Version: all[0].Version}, false
	}
	return all[i], true
}

// TritonTags returns the Python tags that have a package of the contest's Triton.
func TritonTags() (tags []string) {
	for _, c := range components(pinnedTriton) {
		tags = append(tags, c.tag)
	}
	return tags
}

// TritonInstalled reports whether the contest's Triton is installed below root, and returns the folder for Python's
// path.
func TritonInstalled(root, tag string) (dir string, ok bool) {
	return installedAs(root, tritonKey(tag))
}

// TritonUnpacked is the approximate size of the installed Triton in bytes.
const TritonUnpacked int64 = 669e6

func tritonKey(tag string) string { return cache.Key("triton 1", machine(), tag, pinnedTriton) }

// InstallTriton is Install for the contest's Triton.
func InstallTriton(ctx context.Context, root, tag string, progress func(name string, done, total int64)) error {
	c, ok := Triton(tag)
	if !ok || runtime.GOOS != "linux" {
		return fmt.Errorf("toolchain: Triton %s has no wheel for %s on %s/%s", c.Version, tag, runtime.GOOS, runtime.GOARCH)
	}
	return install(ctx, root, tritonKey(tag), []Component{c}, []part{{"", ""}}, progress)
}

// CanInstall returns ErrNoPip if Install would. It uses no network.
func CanInstall(ctx context.Context) error {
	if err := exec.CommandContext(ctx, "python3", "-c", "import pip").Run(); err != nil {
		return ErrNoPip
	}
	return nil
}

func install(ctx context.Context, root, key string, components []Component, parts []part,
	progress func(string, int64, int64)) error {
	if progress == nil {
		progress = func(string, int64, int64) {}
	}
	downloads := filepath.Join(root, "toolchain", "download", key)
	_, _, err := cache.Folder(ctx, root, "toolchain", key, func(dir string) error {
		var wheels []string
		for _, c := range components {
			wheel, err := fetch(ctx, downloads, c, progress)
			if err != nil {
				return fmt.Errorf("toolchain: %s %s: %w", c.Name, c.Version, err)
			}
			wheels = append(wheels, wheel)
		}
		if err := unpack(ctx, dir, wheels, parts, progress); err != nil {
			return err
		}
		return linkLibraries(filepath.Join(dir, "cuda", "lib"))
	})
	if err != nil {
		return err
	}
	if err := os.RemoveAll(downloads); err != nil {
		return err
	}
	os.Remove(filepath.Dir(downloads)) // fails if it holds another package's download
	return nil
}

// fetch returns the wheel of c, from downloads if it is there with the pinned hash.
func fetch(ctx context.Context, downloads string, c Component, progress func(string, int64, int64)) (string, error) {
	dir := filepath.Join(downloads, c.Name+"-"+c.Version)
	tmp := filepath.Join(dir, "tmp")
	if wheel, err := arrived(dir, c); err == nil {
		progress(c.Name, c.Bytes, c.Bytes)
		return wheel, nil
	}
	if err := os.RemoveAll(dir); err != nil {
		return "", err
	}
	if err := os.MkdirAll(tmp, 0o755); err != nil {
		return "", err
	}
	requirements := filepath.Join(dir, "requirements.txt")
	if err := os.WriteFile(requirements, []byte(c.line+"\n"), 0o644); err != nil {
		return "", err
	}
	python, err := exec.LookPath("python3")
	if err != nil {
		return "", ErrNoPip
	}
	args := []string{"-m", "pip", "download", "--no-deps", "--only-binary=:all:", "--require-hashes",
		"--disable-pip-version-check", "--no-input", "--progress-bar=off", "--implementation=cp"}
	if digits := strings.Trim(c.tag, "cpt"); len(digits) > 1 {
		args = append(args, "--python-version="+digits[:1]+"."+digits[1:], "--abi="+c.tag)
	} else {
		args = append(args, "--python-version=3.12")
	}
	// Older pips match platforms literally: list all that pinned wheels may name.
	for _, p := range []string{"_2_28", "_2_27", "_2_25", "_2_24", "_2_17", "2014", "_2_12", "2010"} {
		args = append(args, "--platform=manylinux"+p+"_"+machine())
	}
	cmd := device.Command(ctx, python, append(args, "-r", requirements, "-d", dir)...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Env = append(os.Environ(), "TMPDIR="+tmp)
	progress(c.Name, 0, c.Bytes)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		tick := time.NewTicker(200 * time.Millisecond)
		defer tick.Stop()
		for {
			select {
			case <-tick.C:
				// pip versions report progress differently: count the bytes written.
				progress(c.Name, min(treeSize(tmp), c.Bytes), c.Bytes)
			case <-stop:
				return
			}
		}
	}()
	err = cmd.Run()
	close(stop)
	<-stopped
	os.RemoveAll(tmp)
	if ctx.Err() != nil {
		return "", ctx.Err()
	}
	if err != nil {
		if strings.Contains(out.String(), "No module named pip") {
			return "", ErrNoPip
		}
		if fault := machineError(out.String(), dir); fault != nil {
			err = fault
		}
		return "", fmt.Errorf("pip download: %s: %w", lastLine(out.String(), "ERROR"), err)
	}
	wheel, err := arrived(dir, c)
	if err != nil {
		return "", err
	}
	progress(c.Name, c.Bytes, c.Bytes)
	return wheel, nil
}

// arrived returns the only wheel in dir if its hash is pinned.
func arrived(dir string, c Component) (string, error) {
	wheels, err := filepath.Glob(filepath.Join(dir, "*.whl"))
	if err != nil || len(wheels) != 1 {
		return "", fmt.Errorf("%d wheels in %s, want 1", len(wheels), dir)
	}
	f, err := os.Open(wheels[0])
	if err != nil {
		return "", err
	}
	defer f.Close()
	h := sha256.New()
	if _, err := io.Copy(h, f); err != nil {
		return "", err
	}
	if sum := hex.EncodeToString(h.Sum(nil)); !slices.Contains(c.hashes, sum) {
		return "", fmt.Errorf("%s has the unpinned sha256 %s", filepath.Base(wheels[0]), sum)
	}
	return wheels[0], nil
}

// A part of a wheel: a path prefix, and its replacement when installed.
type part struct{ from, to string }

var parts = []part{
	{"nvidia/cu13/", "cuda/"},
	{"tvm_ffi/include/", "tvm_ffi/include/"},
	{"tvm_ffi/lib/libtvm_ffi.so", "tvm_ffi/lib/libtvm_ffi.so"},
	{"tvm_ffi/_version.py", "tvm_ffi/_version.py"},
}

func unpack(ctx context.Context, dir string, wheels []string, parts []part,
	progress func(string, int64, int64)) error {
	var files []*zip.File
	var names []string
	var done, total int64
	for _, wheel := range wheels {
		z, err := zip.OpenReader(wheel)
		if err != nil {
			return fmt.Errorf("%s: %w", filepath.Base(wheel), err)
		}
		defer z.Close()
		for _, f := range z.File {
			name, err := installed(f, parts)
			if err != nil {
				return fmt.Errorf("%s: %w", filepath.Base(wheel), err)
			}
			if name != "" {
				files, names = append(files, f), append(names, name)
				total += int64(f.UncompressedSize64)
			}
		}
	}
	for i, f := range files {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := unpackFile(filepath.Join(dir, names[i]), f); err != nil {
			return err
		}
		done += int64(f.UncompressedSize64)
		progress("unpack", done, total)
	}
	return nil
}

// installed returns the path of an entry of a wheel below the folder that it is unpacked to, or "" if it is in none of
// the parts.
func installed(f *zip.File, parts []part) (string, error) {
	for _, p := range parts {
		rest, ok := strings.CutPrefix(f.Name, p.from)
		if !ok || strings.HasSuffix(f.Name, "/") {
			continue
		}
		name := filepath.FromSlash(p.to + rest)
		if !filepath.IsLocal(name) || !f.Mode().IsRegular() {
			return "", fmt.Errorf("entry %q is not a file below the wheel's folder", f.Name)
		}
		return name, nil
	}
	return "", nil
}

func unpackFile(path string, f *zip.File) error {
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	perm := fs.FileMode(0o644)
	if f.Mode()&0o111 != 0 {
		perm = 0o755
	}
	r, err := f.Open()
	if err != nil {
		return err
	}
	return store(path, perm, r)
}

// linkLibraries creates libX.so, for linkers, next to each libX.so.N.
func linkLibraries(dir string) error {
	libs, err := filepath.Glob(filepath.Join(dir, "lib*.so.*"))
	if err != nil {
		return err
	}
	for _, lib := range libs {
		base := filepath.Base(lib)
		name := base[:strings.Index(base, ".so")+len(".so")]
		if err := os.Symlink(base, filepath.Join(dir, name)); err != nil && !errors.Is(err, fs.ErrExist) {
			return err
		}
	}
	return nil
}

func treeSize(dir string) (n int64) {
	_ = filepath.WalkDir(dir, func(_ string, d fs.DirEntry, err error) error {
		if err == nil && d.Type().IsRegular() {
			if st, err := d.Info(); err == nil {
				n += st.Size()
			}
		}
		return nil // pip may have removed the file: count 0
	})
	return n
}

// lastLine returns the last line with prefix, without it, or else the last non-empty line.
func lastLine(text, prefix string) (line string) {
	found := false
	for l := range strings.Lines(text) {
		l = strings.TrimSpace(l)
		if rest, ok := strings.CutPrefix(l, prefix); ok {
			line, found = strings.TrimLeft(rest, ": "), true
		} else if l != "" && !found {
			line = l
		}
	}
	return line
}
