package app

import (
	"bytes"
	"context"
	"debug/elf"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"fisub/device"
	"fisub/device/nvcc"
	"fisub/device/vgpu"
	"fisub/device/vgpu/cublas"
	"fisub/internal/usage"
)

// A cudaLibrary is a library that CUDA programs use and the virtual GPU lacks.
type cudaLibrary struct {
	name string
	file *regexp.Regexp // base name of its headers and libraries, without lib and endings
}

var cudaLibraries = []cudaLibrary{
	{"cuBLAS", regexp.MustCompile(`^cublas`)},
	{"cuSPARSE", regexp.MustCompile(`^cusparse`)},
	{"cuFFT", regexp.MustCompile(`^cufft`)},
	{"cuSOLVER", regexp.MustCompile(`^cusolver`)},
	{"cuDNN", regexp.MustCompile(`^cudnn`)},
	{"cuTENSOR", regexp.MustCompile(`^cutensor`)},
	{"cuRAND's host API", regexp.MustCompile(`^curand$`)},
	{"NPP", regexp.MustCompile(`^npp`)},
	{"NCCL", regexp.MustCompile(`^nccl`)},
	{"NVML", regexp.MustCompile(`^(nvml|nvidia-ml)$`)},
	{"NVRTC", regexp.MustCompile(`^nvrtc`)},
	{"nvJPEG", regexp.MustCompile(`^nvjpeg`)},
	{"MPI", regexp.MustCompile(`^mpi(_cxx|cxx)?$`)},
}

// libraryOf returns the name of the library that the virtual GPU lacks and to which a header or a library file belongs,
// or "".
func libraryOf(file string) string {
	base, _, _ := strings.Cut(strings.TrimPrefix(filepath.Base(file), "lib"), ".")
	for _, l := range cudaLibraries {
		if l.file.MatchString(base) {
			return l.name
		}
	}
	return ""
}

var (
	absentFile = regexp.MustCompile(`fatal error: (\S+): No such file|cannot find -l(\S+?):? `)
	included   = regexp.MustCompile(`(?m)^\s*#\s*include\s*[<"]([^>"]+)[>"]`)
)

// absentLibraries returns the libraries that a failed compilation lacks, by the compiler's messages and, if these name
// one, by the program's sources and options too: a compiler stops at the first missing header.
func absentLibraries(messages string, sources []string, options []string) (names []string) {
	add := func(file string) {
		if name := libraryOf(file); name != "" && !slices.Contains(names, name) {
			names = append(names, name)
		}
	}
	for _, m := range absentFile.FindAllStringSubmatch(messages, -1) {
		add(m[1] + m[2])
	}
	if names == nil {
		return nil
	}
	for _, text := range sources {
		for _, m := range included.FindAllStringSubmatch(text, -1) {
			if _, ok := nvcc.HeadersOf(m[1]); !ok {
				add(m[1])
			}
		}
	}
	for _, o := range options {
		if library, ok := strings.CutPrefix(o, "-l"); ok && library != "cublas" && library != "cublasLt" {
			add(library)
		}
	}
	slices.Sort(names)
	return names
}

// cudaVersion takes --cuda VERSION from the arguments of nvcc, and reports whether it asks for CUDA 12.
func cudaVersion(args []string) (rest []string, twelve bool, err error) {
	for i := 0; i < len(args); i++ {
		value, ok := strings.CutPrefix(args[i], "--cuda=")
		if args[i] == "--cuda" {
			if i++; i < len(args) {
				value, ok = args[i], true
			}
		}
		if !ok && (i == len(args) || args[i] != "--cuda") {
			rest = append(rest, args[i])
			continue
		}
		if twelve, err = true, onlyCUDA12(value); err != nil {
			return nil, false, err
		}
	}
	return rest, twelve, nil
}

func onlyCUDA12(version string) error {
	if version == nvcc.CUDA12 {
		return nil
	}
	return usage.Errorf("for CUDA 13, leave it out", "--cuda %s: there is only %s", version, nvcc.CUDA12)
}

// changed has the functions whose arguments differ in CUDA 12 and 13. The runtime library has both forms.
var changed = []string{"cudaGraphAddDependencies", "cudaMemAdvise", "cudaMemPrefetchAsync"}

// headers12 returns the options with which nvcc compiles sources of CUDA 12. It fetches the headers if they are
// missing.
func (a *app) headers12(ctx context.Context, root string, t *nvcc.Toolchain) (options []string, err error) {
	if err := a.fetchCUDA12(ctx, root); err != nil {
		return nil, err
	}
	dir, _ := nvcc.CUDA12Installed(root)
	library, err := vgpu.Runtime(ctx, root, t)
	options = []string{"-I" + dir, "-Xlinker", library}
	for _, name := range changed {
		options = append(options, "-D"+name+"="+name+"_cuda12")
	}
	return options, err
}

// removed matches messages about what CUDA 13 no longer has and CUDA 12 has.
var removed = regexp.MustCompile(`identifier "cudaThread(Synchronize|Exit|\w+(Limit|CacheConfig))" is undefined|` +
	`class "cudaDeviceProp" has no member|` +
	`namespace "thrust" has no member (class )?"((unary|binary)_function|distance|pair)"|` +
	`no suitable constructor exists to convert from "int" to "cudaMemLocation"`)

// compile runs nvcc for the virtual GPU. If a header is missing that a pinned wheel has, it fetches the headers and
// compiles again. If the compilation fails because of libraries that the virtual GPU lacks, it names all of them.
func (a *app) compile(ctx context.Context, root string, t *nvcc.Toolchain, args []string) error {
	args, twelve, err := cudaVersion(args)
	if err != nil {
		return err
	}
	if twelve {
		options, err := a.headers12(ctx, root, t)
		if err != nil {
			return err
		}
		args = append(args, options...)
	}
	for fetched := map[string]bool{}; ; {
		command := append(vgpu.Compiler(t), args...)
		for _, dir := range nvcc.HeaderFolders(root) {
			command = append(command, "-isystem="+dir)
		}
		if links(args, "cuda") {
			dir, err := vgpu.Stubs(ctx, root, t)
			if err != nil {
				return err
			}
			command = append(command, "-L"+dir)
		}
		if include, ok := cublas.Include(root, t); ok && (links(args, "cublas") || links(args, "cublasLt")) {
			dir, err := cublas.Library(ctx, root, t, include)
			if err != nil {
				return err
			}
			command = append(command, "-L"+dir)
		}
		cmd := device.Command(ctx, command[0], command[1:]...)
		cmd.Dir = a.Dir
		var messages bytes.Buffer
		cmd.Stdin, cmd.Stdout, cmd.Stderr = a.term.In, a.stdout, &messages
		err := cmd.Run()
		if m := absentFile.FindStringSubmatch(messages.String()); err != nil && m != nil && m[1] != "" {
			if c, ok := nvcc.HeadersOf(m[1]); ok && !fetched[c.Name] {
				fetched[c.Name] = true
				a.term.Note("fetching %s %s for %s; only its headers are kept", c.Name, c.Version, m[1])
				progress, finish := a.components()
				err := nvcc.InstallHeaders(ctx, root, c, progress)
				finish()
				if err != nil {
					return err
				}
				continue
			}
		}
		_, _ = a.stderr.Write(messages.Bytes())
		if err == nil {
			return nil
		}
		if absent := absentLibraries(messages.String(), a.sourcesOf(args), args); absent != nil {
			text := "the virtual GPU lacks " + strings.Join(absent, ", ")
			a.term.Error("nvcc: "+text, "compile it with the nvcc of a CUDA toolkit for a GPU, or replace these calls")
		}
		if removed.Match(messages.Bytes()) && !twelve {
			a.term.Error("nvcc: the source uses what CUDA 13 has removed",
				"to compile it with the headers of CUDA "+nvcc.CUDA12+": fisub nvcc --cuda "+nvcc.CUDA12)
		}
		return a.ended("nvcc", err)
	}
}

// links reports whether nvcc with these arguments links with a library.
func links(args []string, library string) bool {
	return slices.ContainsFunc(args, func(arg string) bool { return arg == "-l"+library || arg == library })
}

// sourcesOf returns the sources among the arguments of nvcc.
func (a *app) sourcesOf(args []string) (texts []string) {
	for _, arg := range args {
		switch filepath.Ext(arg) {
		case ".cu", ".cpp", ".cc", ".cxx", ".c":
			if text, err := os.ReadFile(a.Path(arg)); err == nil {
				texts = append(texts, string(text))
			}
		}
	}
	return texts
}

// noteMissing names the functions of CUDA that the program at path uses and the virtual GPU lacks.
func (a *app) noteMissing(ctx context.Context, root string, t *nvcc.Toolchain, path string) error {
	folder, err := cublasOf(ctx, root, t, path)
	if err != nil {
		return err
	}
	var more []string
	if folder != "" {
		more = append(more, filepath.Join(folder, cublas.Name))
	}
	missing, err := vgpu.Missing(ctx, root, t, path, more...)
	if err == nil && missing != nil {
		a.term.Warn(fmt.Sprintf("nvcc: the virtual GPU lacks functions that the program uses: %s",
			strings.Join(missing, ", ")), "")
	}
	return err
}

// cublasOf returns the folder with the virtual GPU's cuBLAS if the program at path needs cuBLAS, or "".
func cublasOf(ctx context.Context, root string, t *nvcc.Toolchain, path string) (string, error) {
	include, ok := cublas.Include(root, t)
	needed := func(name string) bool { return slices.Contains(cublas.Names, name) }
	if !ok || !slices.ContainsFunc(librariesOf(path), needed) {
		return "", nil
	}
	return cublas.Library(ctx, root, t, include)
}

// librariesOf returns the file names of the libraries that a program needs; none for other files than ELF.
func librariesOf(path string) []string {
	f, err := elf.Open(path)
	if err != nil {
		return nil // a script may start other programs
	}
	defer f.Close()
	needs, err := f.ImportedLibraries()
	if err != nil {
		return nil
	}
	return needs
}

// lackingLibraries returns an error if a program needs libraries that the virtual GPU lacks.
func lackingLibraries(path string) error {
	var names []string
	for _, file := range librariesOf(path) {
		if name := libraryOf(file); name != "" && name != "cuBLAS" && name != "MPI" {
			names = append(names, name+" ("+file+")")
		}
	}
	if names == nil {
		return nil
	}
	return usage.Errorf("run it on a GPU, or replace these calls", "emu: %s needs %s, which the virtual GPU lacks", path,
		strings.Join(names, ", "))
}
