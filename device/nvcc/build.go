package nvcc

import (
	"bytes"
	"cmp"
	"context"
	"debug/elf"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"

	"golang.org/x/sync/errgroup"
	"golang.org/x/sys/unix"

	"fisub/device"
	"fisub/internal/cache"
	"fisub/internal/hint"
	"fisub/internal/plain"
	"fisub/internal/sandbox"
	"fisub/internal/trace"
)

// An Object is a built solution. Its folder holds everything needed to load it, except the driver: another machine
// needs no build if it has a copy of the folder and its index entry in the cache.
type Object struct {
	Path        string // the shared object
	Dir         string
	Libs        []string    // libraries to load before it, in this order
	Symbol      string      // the exported function, "__tvm_ffi_<entry point>"
	Arch        string      // such as "sm_90"
	Toolchain   string      // Toolchain.String of its toolchain
	CUDAVersion string      // of its CUDA runtime, "13.0"
	Log         string      // compiler warnings
	Kernels     []Resources // in the order of the sources
	// Parameters of the exported function, one letter each: "i" integer, "f" floating-point number, "p" raw pointer,
	// "t" tensor, "?" other; nil if the compiler does not report them.
	Parameters *string
	Columns    Columns // of its line information
	Hit        bool    // from the cache
}

// manifest is build.json in an object's folder.
type manifest struct {
	Arch        string      `json:"arch"`
	Toolchain   string      `json:"toolchain"`
	CUDAVersion string      `json:"cuda_version"`
	Libs        []string    `json:"libs"` // relative to the folder
	Commands    []string    `json:"commands"`
	Kernels     []Resources `json:"kernels"`
}

const (
	objectFile   = "kernel.so"
	manifestFile = "build.json"
	logFile      = "log.txt"
	columnsFile  = "columns.json"
	symbolPrefix = "__tvm_ffi_"
	maxLog       = 1 << 20 // bytes kept of one command's output
)

// Build builds sol for arch ("sm_90", "sm_100a", or "compute_100", whose object also holds PTX) with t, or takes the
// object from the cache below root. If t is nil, it uses Find; without a toolchain it returns a copied object of the
// same sources and arch, or else Find's error. A *device.BuildError is about the solution, any other error about the
// machine.
func Build(ctx context.Context, root string, t *Toolchain, sol *trace.Solution, arch string) (*Object, error) {
	var err error
	if t == nil {
		t, err = Find(root)
	}
	if err == nil {
		return t.Build(ctx, root, sol, arch)
	}
	s, serr := newSources(sol, arch)
	if serr != nil {
		return nil, serr
	}
	if o, missing := lookUp(root, s); missing == nil {
		return o, nil
	}
	return nil, err
}

var errNotBuilt = errors.New("not built")

// lookUp returns the newest object of s below root, by any toolchain, or errNotBuilt.
func lookUp(root string, s *sources) (*Object, error) {
	key, err := os.ReadFile(s.index(root))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, errNotBuilt
	} else if err != nil {
		return nil, err
	}
	return readObject(filepath.Join(root, "build", path.Base(strings.TrimSpace(string(key)))), s)
}

// Build is the function Build with t.
func (t *Toolchain) Build(ctx context.Context, root string, sol *trace.Solution, arch string) (*Object, error) {
	s, err := newSources(sol, arch)
	if err != nil {
		return nil, err
	}
	o, err := t.object(ctx, root, s)
	if err != nil {
		return nil, err
	}
	index, text := s.index(root), t.key(s)+"\n"
	if err := os.MkdirAll(filepath.Dir(index), 0o755); err != nil {
		return nil, err
	}
	if old, err := os.ReadFile(index); err != nil || string(old) != text {
		if err := cache.WriteFile(index, []byte(text), 0o644); err != nil {
			return nil, err
		}
	}
	return o, nil
}

// object compiles s, or takes its object from the cache below root.
func (t *Toolchain) object(ctx context.Context, root string, s *sources) (*Object, error) {
	compile := func(dir string) error { return t.compile(ctx, dir, s) }
	dir, hit, err := cache.Folder(ctx, root, "build", t.key(s), compile)
	if err != nil {
		return nil, err
	}
	o, err := readObject(dir, s)
	if err == nil {
		o.Hit = hit
	}
	return o, err
}

// BuildShared is Build for a caller that runs nothing: it prefers an object that a run on this machine has built or
// will need. That may be one of the virtual arch, which has the same machine code. gpu reports whether runs use a GPU.
func BuildShared(ctx context.Context, root string, t *Toolchain, sol *trace.Solution, arch string, gpu bool) (*Object,
	error) {
	archs := []string{arch, WithLines(arch)}
	for _, a := range archs {
		if t != nil && t.has(root, sol, a) {
			return t.Build(ctx, root, sol, a)
		}
	}
	if t != nil && !gpu {
		arch = archs[1]
	}
	return Build(ctx, root, t, sol, arch)
}

// has reports whether the cache has an object by t.
func (t *Toolchain) has(root string, sol *trace.Solution, arch string) bool {
	s, err := newSources(sol, arch)
	if err != nil {
		return false
	}
	_, err = os.Stat(filepath.Join(root, "build", t.key(s), manifestFile))
	return err == nil
}

// sources are a solution's files, checked but not yet written.
type sources struct {
	files   []trace.SourceFile // sorted by cleaned path
	cuda    []string           // .cu files
	host    []string           // C and C++ files
	useCUDA bool               // link the CUDA libraries even without a .cu file
	symbol  string
	arch    string
	torch   *torch // nil for the binding tvm-ffi
	emit    bool   // keep PTX and machine code, with line information
}

var archName = regexp.MustCompile(`^(?:sm|compute)_([1-9][0-9]{1,2}[af]?)$`)

func newSources(sol *trace.Solution, arch string) (*sources, error) {
	if !archName.MatchString(arch) {
		return nil, fmt.Errorf("arch %q: want one such as sm_90 or sm_100a", arch)
	}
	if sol.Spec.Language != trace.CUDA && sol.Spec.Language != trace.CPP {
		return nil, fmt.Errorf("fisub does not compile language %q", sol.Spec.Language)
	}
	if sol.Spec.Binding != "" && sol.Spec.Binding != "tvm-ffi" {
		return nil, fmt.Errorf("binding %q is not supported, only tvm-ffi is", sol.Spec.Binding)
	}
	_, entry, ok := strings.Cut(sol.Spec.EntryPoint, "::")
	if !ok || entry == "" {
		return nil, &device.BuildError{Text: fmt.Sprintf("entry point %q: missing symbol", sol.Spec.EntryPoint)}
	}
	isCUDA := func(hw string) bool { return strings.EqualFold(hw, "cuda") }
	s := &sources{symbol: symbolPrefix + entry, arch: arch, useCUDA: slices.ContainsFunc(sol.Spec.TargetHardware, isCUDA)}
	seen := map[string]string{}
	for _, f := range sol.Sources {
		name := filepath.Clean(f.Path)
		if !filepath.IsLocal(f.Path) || name == "." {
			return nil, &device.BuildError{Text: fmt.Sprintf("source path %q is not a file below the build folder", f.Path)}
		}
		if other, ok := seen[name]; ok {
			return nil, &device.BuildError{Text: fmt.Sprintf("source paths %q and %q are the same file", other, f.Path)}
		}
		seen[name] = f.Path
		s.files = append(s.files, trace.SourceFile{Path: name, Content: f.Content})
	}
	if err := sol.CheckNames(); err != nil {
		return nil, err
	}
	slices.SortFunc(s.files, func(a, b trace.SourceFile) int { return strings.Compare(a.Path, b.Path) })
	for _, f := range s.files {
		switch filepath.Ext(f.Path) {
		case ".cu":
			s.cuda = append(s.cuda, f.Path)
		case ".cpp", ".cc", ".cxx", ".c":
			s.host = append(s.host, f.Path)
		}
	}
	if len(s.cuda)+len(s.host) == 0 {
		return nil, &device.BuildError{Text: "no source file to compile: none ends in .cu, .cpp, .cc, .cxx or .c"}
	}
	return s, nil
}

// index returns the file naming the newest build of s, by any toolchain.
func (s *sources) index(root string) string {
	return filepath.Join(root, "build", "index", cache.Key(append([]string{"index 2"}, s.identity()...)...))
}

// identity returns everything in s that affects the build; the entry symbol does not.
func (s *sources) identity() []string {
	id := []string{s.arch, fmt.Sprint(s.useCUDA)}
	if s.torch != nil {
		id = append(id, s.torch.version)
	}
	if s.emit {
		id = append(id, "emit 1")
	}
	for _, f := range s.files {
		id = append(id, f.Path, f.Content)
	}
	return id
}

func (t *Toolchain) key(s *sources) string {
	id := []string{"build 5", t.Version, t.TVMFFIVersion, t.CXXVersion, os.Getenv("NVCC_CCBIN")}
	id = append(id, cudaFlags(s.arch)...)
	id = append(id, cxxFlags...)
	id = append(id, t.linkLibs(s)...)
	return cache.Key(append(id, s.identity()...)...)
}

// virtual reports whether arch is virtual, such as "compute_100". Its objects have PTX with line information and
// machine code, which proves that ptxas accepts the PTX.
func virtual(arch string) bool { return strings.HasPrefix(arch, "compute_") }

// WithLines returns the virtual arch of arch, whose objects have line information and the same machine code.
func WithLines(arch string) string { return strings.Replace(arch, "sm_", "compute_", 1) }

// Flags and their order are the contest builder's (spec section 4.2); callers add paths.

func cudaFlags(arch string) []string {
	xy := archName.FindStringSubmatch(arch)[1]
	flags := []string{"-Xcompiler", "-fPIC", "-std=c++17", "-O2"}
	if virtual(arch) {
		return append(flags, "-gencode=arch=compute_"+xy+",code=[compute_"+xy+",sm_"+xy+"]", "--no-compress", "-lineinfo")
	}
	return append(flags, "-gencode=arch=compute_"+xy+",code=sm_"+xy)
}

var cxxFlags = []string{"-std=c++17", "-fPIC", "-O2"}

// linkLibs returns the -l flags. The contest's builder always passes -lcuda and -lcublas. Here each is passed only if
// the linker can find it, so that machines without a driver or cuBLAS can build: the driver is loaded before any
// solution, with global symbols, and solutions that call cuBLAS need its headers to compile.
func (t *Toolchain) linkLibs(s *sources) []string {
	libs := []string{"-ltvm_ffi"}
	if s.torch != nil {
		libs = nil // torch's libraries are already loaded
	}
	if len(s.cuda) > 0 {
		libs = append(libs, "-lcudart")
	}
	if len(s.cuda) > 0 || s.useCUDA {
		dirs := append(slices.Clone(t.LibDirs), "/usr/lib/"+machine()+"-linux-gnu", "/usr/lib64", "/usr/lib")
		for _, name := range []string{"cuda", "cublas"} {
			if firstWith("lib"+name+".so", dirs...) != "" {
				libs = append(libs, "-l"+name)
			}
		}
	}
	return libs
}

// compile writes the object's folder into dir.
func (t *Toolchain) compile(ctx context.Context, dir string, s *sources) error {
	for _, path := range []string{t.TVMFFI, dir} { // nvcc splits lists at commas, and runs commands in a shell
		if i := strings.IndexAny(path, ",'\"$`\\"); i >= 0 {
			return fmt.Errorf("nvcc cannot use the folder %s, because of the character %c; set FISUB_CACHE to another "+
				"folder", path, path[i])
		}
	}
	src, tmp, obj := filepath.Join(dir, "src"), filepath.Join(dir, "tmp"), filepath.Join(dir, "obj")
	for _, d := range []string{src, tmp, obj} {
		if err := os.Mkdir(d, 0o755); err != nil {
			return err
		}
	}
	if err := s.write(src); err != nil {
		return err
	}
	// Compilers run in the sources' folder with relative names: messages name the user's files, and the result does
	// not depend on the cache's location.
	include := []string{"-I" + filepath.Join(t.TVMFFI, "include"), "-I."}
	if s.torch != nil {
		include = s.torch.include
	} else if err := probe(dir); err == nil {
		include = append([]string{"-I" + filepath.Join(dir, "probe")}, include...)
	} else {
		return err
	}
	var steps [][]string
	var objects []string
	kept := func(i int) string { return filepath.Join(tmp, fmt.Sprintf("keep_%d", i)) }
	for i, f := range s.cuda { // nvcc prints each kernel's resources and keeps PTX and cubin, with the same object
		o := fmt.Sprintf("../obj/cuda_%d.o", i)
		if err := os.Mkdir(kept(i), 0o755); err != nil {
			return err
		}
		var lines []string
		if s.emit && !virtual(s.arch) {
			lines = []string{"-lineinfo"}
		}
		flags := s.torch.instead(cudaFlags(s.arch))
		steps = append(steps, slices.Concat([]string{t.NVCC}, flags, lines, s.torch.flags(), include,
			[]string{"-Xptxas", "-v", "-keep", "--keep-dir", kept(i), "-c", f, "-o", o}))
		objects = append(objects, o)
	}
	for i, f := range s.host {
		o := fmt.Sprintf("../obj/cpp_%d.o", i)
		compiler, flags := t.CXX, cxxFlags
		if filepath.Ext(f) == ".c" {
			compiler, flags = []string{cc()}, cxxFlags[1:]
		}
		flags = slices.Concat(s.torch.instead(flags), s.torch.flags(), include)
		steps = append(steps, slices.Concat(compiler, flags, []string{"-c", f, "-o", o}))
		objects = append(objects, o)
	}
	results := make([]result, len(steps))
	box := &sandbox.Sandbox{Write: []string{dir}, Read: t.reads(s), Env: []string{"TMPDIR=" + tmp, "LC_ALL=C",
		"CCACHE_DISABLE=1"}}
	var g errgroup.Group
	g.SetLimit(2)
	for i, step := range steps {
		g.Go(func() error {
			results[i] = run(ctx, box, src, step)
			if i < len(s.cuda) && strings.Contains(results[i].log, "ptxas ") {
				if results[i].failed && !virtual(s.arch) { // ptxas needs line information in the PTX to report places
					results[i].log = run(ctx, box, src, append(slices.Clone(step), "-lineinfo")).log
				}
				results[i].log = readable(results[i].log, kept(i), src)
			}
			return nil
		})
	}
	_ = g.Wait()
	var log bytes.Buffer
	var broken []string
	var kernels []Resources
	for i, r := range results {
		if r.err != nil {
			return r.err
		}
		if i < len(s.cuda) {
			var found []Resources
			found, r.log = takeReport(r.log, s.cuda[i])
			r.log = withColumns(r.log, s.lines())
			complete(found, kept(i))
			kernels = append(kernels, found...)
		}
		log.WriteString(r.log)
		if r.failed {
			broken = append(broken, slices.Concat(s.cuda, s.host)[i])
		}
	}
	if len(broken) > 0 {
		return buildError(strings.Join(broken, ", ")+" does not compile", log.String())
	}
	cols := Columns{}
	for i := range s.cuda {
		if s.emit {
			if err := keep(kept(i), dir, i); err != nil {
				return err
			}
		}
		if virtual(s.arch) {
			maps.Copy(cols, columns(kept(i), s.lines()))
		}
	}
	link := slices.Concat(t.CXX, objects, []string{"-shared", "-L" + filepath.Join(t.TVMFFI, "lib")})
	for _, d := range t.LibDirs {
		link = append(link, "-L"+d)
	}
	link = slices.Concat(link, t.linkLibs(s), []string{"-o", "../" + objectFile})
	steps = append(steps, link)
	r := run(ctx, box, src, link)
	if r.err != nil {
		return r.err
	}
	log.WriteString(r.log)
	if r.failed {
		return buildError("the solution does not link", log.String())
	}
	demangle(kernels)
	m := manifest{Arch: s.arch, Toolchain: t.String(), CUDAVersion: t.CUDAVersion, Kernels: kernels}
	colsText, err := json.Marshal(cols)
	if err != nil {
		return err
	}
	if s.torch != nil {
		m.Toolchain = fmt.Sprintf("nvcc %s, torch %s", t.Version, s.torch.version)
	}
	for _, lib := range t.runtimeLibs(filepath.Join(dir, objectFile)) {
		name := filepath.Join("lib", filepath.Base(lib))
		if err := place(lib, filepath.Join(dir, name)); err != nil {
			return err
		}
		m.Libs = append(m.Libs, name)
	}
	for _, step := range steps {
		m.Commands = append(m.Commands, strings.Join(step, " "))
	}
	text, err := json.MarshalIndent(m, "", "  ")
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, manifestFile), append(text, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, logFile), log.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, columnsFile), colsText, 0o644),
		os.RemoveAll(obj),
		os.RemoveAll(tmp),
		os.RemoveAll(filepath.Join(dir, "probe")),
	)
}

func (s *sources) write(dir string) error {
	root, err := os.OpenRoot(dir)
	if err != nil {
		return err
	}
	defer root.Close()
	for _, f := range s.files {
		err := root.MkdirAll(filepath.Dir(f.Path), 0o755)
		if err == nil {
			err = root.WriteFile(f.Path, []byte(f.Content), 0o644)
		}
		switch {
		case errors.Is(err, syscall.ENOTDIR), errors.Is(err, syscall.EISDIR), errors.Is(err, syscall.EEXIST),
			errors.Is(err, syscall.ENAMETOOLONG):
			return &device.BuildError{Text: fmt.Sprintf("source path %q: %v", f.Path, err)}
		case err != nil:
			return err
		}
	}
	return nil
}

func cc() string { return cmp.Or(os.Getenv("CC"), "cc") }

// runtimeLibs returns the libraries of t needed by the shared object so, dependencies first.
func (t *Toolchain) runtimeLibs(so string) []string {
	libs := []string{filepath.Join(t.TVMFFI, "lib", "libtvm_ffi.so")}
	f, err := elf.Open(so)
	if err != nil {
		return libs
	}
	defer f.Close()
	if needed, _ := f.ImportedLibraries(); slices.Contains(needed, filepath.Base(t.CUDART)) {
		libs = append(libs, t.CUDART)
	}
	return libs
}

// place links dst to src, or copies it, for example across file systems.
func place(src, dst string) error {
	if err := os.MkdirAll(filepath.Dir(dst), 0o755); err != nil {
		return err
	}
	if target, err := filepath.EvalSymlinks(src); err == nil && os.Link(target, dst) == nil {
		return nil
	}
	r, err := os.Open(src)
	if err != nil {
		return err
	}
	return store(dst, 0o755, r)
}

// store writes r to the new file path and closes r.
func store(path string, perm fs.FileMode, r io.ReadCloser) error {
	defer r.Close()
	w, err := os.OpenFile(path, os.O_CREATE|os.O_EXCL|os.O_WRONLY, perm)
	if err != nil {
		return err
	}
	_, err = io.Copy(w, r)
	return errors.Join(err, w.Close())
}

// exported returns the parameters of the function symbol (see Object.Parameters), or a *device.BuildError if so does
// not export it.
func exported(so, symbol, log string) (*string, error) {
	f, err := elf.Open(so)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	symbols, err := f.DynamicSymbols()
	if err != nil && !errors.Is(err, elf.ErrNoSymbols) {
		return nil, err
	}
	var exports []string
	for _, sym := range symbols {
		switch {
		case sym.Section == elf.SHN_UNDEF:
		case sym.Name == symbol:
			return parameters(f, symbols, symbol), nil
		case strings.Contains(sym.Name, symbolPrefix) || strings.HasPrefix(sym.Name, "PyInit_"):
			exports = append(exports, sym.Name)
		}
	}
	entry := strings.TrimPrefix(symbol, symbolPrefix)
	return nil, &device.BuildError{Text: fmt.Sprintf("Entry point '%s' not found in module", entry), Log: log,
		Exports: exports}
}

// readObject returns the object of s in dir, or a *device.BuildError if its symbol is not exported.
func readObject(dir string, s *sources) (*Object, error) {
	text, err := os.ReadFile(filepath.Join(dir, manifestFile))
	if err != nil {
		return nil, err
	}
	var m manifest
	if err := json.Unmarshal(text, &m); err != nil {
		return nil, fmt.Errorf("%s: %w", filepath.Join(dir, manifestFile), err)
	}
	if m.Arch != s.arch {
		return nil, fmt.Errorf("%s: built for %s", dir, m.Arch)
	}
	log, err := os.ReadFile(filepath.Join(dir, logFile))
	if err != nil {
		return nil, err
	}
	o := &Object{Path: filepath.Join(dir, objectFile), Dir: dir, Symbol: s.symbol, Arch: m.Arch, Toolchain: m.Toolchain,
		CUDAVersion: m.CUDAVersion, Log: string(log), Kernels: m.Kernels, Hit: true}
	if text, err = os.ReadFile(filepath.Join(dir, columnsFile)); err == nil {
		err = json.Unmarshal(text, &o.Columns)
	}
	if err != nil {
		return nil, err
	}
	for _, lib := range append([]string{objectFile}, m.Libs...) {
		if !filepath.IsLocal(lib) || !isFile(filepath.Join(dir, lib)) {
			return nil, fmt.Errorf("%s: %q is missing", dir, lib)
		}
	}
	for _, lib := range m.Libs {
		o.Libs = append(o.Libs, filepath.Join(dir, lib))
	}
	o.Parameters, err = exported(o.Path, s.symbol, o.Log)
	if err != nil {
		return nil, err
	}
	return o, nil
}

// A result is the outcome of a command: failed means a fault in the sources, err any other failure.
type result struct {
	log    string
	failed bool
	err    error
}

// reads returns the paths that the compilers of s may read outside their folder, without the user's files.
func (t *Toolchain) reads(s *sources) (paths []string) {
	for _, name := range []string{t.NVCC, t.CXX[0], cc(), "gcc", "g++", "as", "ld", os.Getenv("NVCC_CCBIN")} {
		if path, err := exec.LookPath(name); err == nil {
			paths = append(paths, sandbox.Programs(path)...)
		}
	}
	paths = append(append(paths, t.TVMFFI, t.CUDAInclude), t.LibDirs...)
	if s.torch != nil {
		paths = append(paths, s.torch.include...)
	}
	for _, name := range []string{"CPATH", "C_INCLUDE_PATH", "CPLUS_INCLUDE_PATH", "LIBRARY_PATH", "LD_LIBRARY_PATH",
		"COMPILER_PATH", "NVCC_CCBIN"} {
		paths = append(paths, filepath.SplitList(os.Getenv(name))...)
	}
	return slices.DeleteFunc(paths, func(path string) bool { return !filepath.IsAbs(path) })
}

// run runs a compiler in dir, in a sandbox.
func run(ctx context.Context, box *sandbox.Sandbox, dir string, argv []string) result {
	cmd := box.Command(ctx, argv[0], argv[1:]...)
	cmd.Dir = dir
	// These variables would add flags that the contest's builder does not use.
	cmd.Env = slices.DeleteFunc(cmd.Env, func(v string) bool {
		return strings.HasPrefix(v, "NVCC_PREPEND_FLAGS=") || strings.HasPrefix(v, "NVCC_APPEND_FLAGS=")
	})
	out := &plain.Buffer{Limit: maxLog}
	cmd.Stdout, cmd.Stderr = out, out
	err := cmd.Run()
	name := filepath.Base(argv[0])
	if ctx.Err() != nil {
		return result{err: ctx.Err()}
	}
	r := result{log: out.String()}
	if err == nil {
		return r
	}
	var exit *exec.ExitError
	if !errors.As(err, &exit) || !exit.Exited() || sandbox.Refused(err) {
		return result{err: fmt.Errorf("running %s: %w\n%s", name, err, r.log)}
	}
	if killed(exit.ExitCode(), r.log) {
		return result{err: hint.Wrap(fmt.Errorf("running %s: a program that it started was killed: %w", name, err),
			"the machine may have too little memory: try again")}
	}
	if err := machineError(r.log, dir); err != nil {
		return result{err: fmt.Errorf("running %s: %w", name, err)}
	}
	r.failed = true
	return r
}

// fatalExit is the exit status of cicc and cudafe++ after a catastrophic error, and after a signal.
const fatalExit = 4

// killed reports whether nvcc failed because somebody killed a program that it started. A program that crashed is not
// meant: the sources may be the reason.
func killed(status int, log string) bool {
	switch syscall.Signal(status - 128) {
	case syscall.SIGHUP, syscall.SIGINT, syscall.SIGKILL, syscall.SIGTERM:
		return true
	}
	return status == fatalExit && !faultLine.MatchString(log)
}

// minRoom is the free space in bytes below which a compiler's failure is blamed on the disk: nvcc then crashes or
// prints misleading messages.
const minRoom = 64 << 20

// machineError returns the part of a failed program's log that is about the machine, or nil. It wraps ENOSPC if the
// disk of dir, the working folder, is full.
func machineError(log, dir string) error {
	m := device.MachineFault(log)
	var st unix.Statfs_t
	if unix.Statfs(dir, &st) == nil && uint64(st.Bsize)*st.Bavail < minRoom {
		if m == "" {
			m = lastLine(log, "error")
		}
		return fmt.Errorf("%s (%d MB are free in %s): %w", m, uint64(st.Bsize)*st.Bavail/1e6, dir, unix.ENOSPC)
	}
	if m != "" {
		return errors.New(m)
	}
	return nil
}

var faultLine = regexp.MustCompile(`(?im)^.*\b(error|undefined reference|undefined symbol|fatal)\b.*$`)

var (
	noHeader = regexp.MustCompile(`fatal error: (\S+): No such file`)
	ofImage  = regexp.MustCompile(`^(?:cutlass|cute|nvtx3|cudnn_frontend)/|^(?:cublas|cuda_profiler|cudaProfiler|` +
		`cudnn|cufft|curand|cusolver|cusparse|nccl|npp|nvJitLink|nvToolsExt|nvml|nvrtc)\w*\.h$`)
)

// OfImage reports whether the contest's image may have a header that a toolchain need not have: of the CUDA toolkit's
// libraries, or of CUTLASS. A missing one says nothing about the solution.
func OfImage(header string) bool { return ofImage.MatchString(header) }

// Judged converts an error of Build for a run. If a header is missing for which OfImage is true, the run cannot judge
// the solution, and the error wraps device.ErrUnsupported.
func Judged(err error) error {
	if broken, ok := errors.AsType[*device.BuildError](err); ok {
		if m := noHeader.FindStringSubmatch(broken.Log); m != nil && OfImage(m[1]) {
			return fmt.Errorf("%w: missing header %s, which the contest's image may have", device.ErrUnsupported, m[1])
		}
	}
	return err
}

func buildError(what, log string) error {
	if m := faultLine.FindString(log); m != "" {
		what += ": " + strings.TrimSpace(m)
	}
	return &device.BuildError{Text: what, Log: log}
}
