package app

import (
	"context"
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/ui"
	"fisub/internal/usage"
	"fisub/project/machine"
)

func (a *app) toolchainCommand() *cli.Command {
	var force bool
	var version string
	return &cli.Command{
		Name:  "toolchain",
		Usage: "show or install the CUDA compiler and the TVM-FFI library",
		Subcommands: []*cli.Command{
			{Name: "install", Usage: "fetch the missing parts from PyPI into the cache",
				Flags: []cli.Flag{boolFlag(&force, "force", "fetch them even if a toolkit is installed"),
					stringFlag(&version, "cuda", "also the headers of CUDA `VERSION` for fisub nvcc: "+nvcc.CUDA12, "")},
				Action: func(c *cli.Context) error { return a.toolchainInstall(c.Context, force, version) }},
			{Name: "show", Usage: "print the compiler and libraries in use",
				Action: func(*cli.Context) error { return a.toolchainShow() }},
		},
	}
}

func (a *app) toolchainInstall(ctx context.Context, force bool, version string) error {
	root, err := cache.Root()
	if err != nil {
		return err
	}
	if version != "" {
		if err := onlyCUDA12(version); err != nil {
			return err
		}
		if err := a.fetchCUDA12(ctx, root); err != nil {
			return err
		}
	}
	progress, finish := a.components()
	err = machine.FetchTriton(ctx, "emu", root, progress, a.term)
	finish()
	if err != nil {
		return err
	}
	if t, err := nvcc.Find(root); err == nil && !force {
		if a.json {
			return a.writeJSON(t)
		}
		fmt.Fprintf(a.stdout, "%s in %s\n", t, t.NVCC)
		return nil
	}
	if err := a.fetchToolchain(ctx, root); err != nil {
		return err
	}
	return a.toolchainShow()
}

// toolchain returns the CUDA toolchain, and fetches it if it is missing.
func (a *app) toolchain(ctx context.Context, root string) (*nvcc.Toolchain, error) {
	t, err := nvcc.Find(root)
	if missing, ok := errors.AsType[*nvcc.MissingError](err); !ok || missing.NoCXX() {
		return t, err
	}
	if err := a.fetchToolchain(ctx, root); err != nil {
		return nil, err
	}
	return nvcc.Find(root)
}

// fetchToolchain installs the toolchain into the cache below root and shows the progress.
func (a *app) fetchToolchain(ctx context.Context, root string) error {
	if _, ok := nvcc.Installed(root); !ok {
		a.term.Note("installing the CUDA compiler and TVM-FFI into %s:", root)
		for _, comp := range nvcc.Components() {
			a.term.Note("  %s %s", comp.Name, comp.Version)
		}
	}
	progress, finish := a.components()
	err := nvcc.Install(ctx, root, progress)
	finish()
	if errors.Is(err, nvcc.ErrNoPip) {
		return usage.Invalid(err)
	}
	return err
}

// fetchCUDA12 fetches the headers of CUDA 12 if they are missing.
func (a *app) fetchCUDA12(ctx context.Context, root string) error {
	if _, ok := nvcc.CUDA12Installed(root); ok {
		return nil
	}
	a.term.Note("fetching the headers of CUDA %s into %s", nvcc.CUDA12, root)
	progress, finish := a.components()
	defer finish()
	return nvcc.InstallCUDA12(ctx, root, progress)
}

// components returns a function that shows a progress bar for each component, and one that finishes the last bar.
func (a *app) components() (progress func(name string, done, total int64), finish func()) {
	var bar *ui.Bar
	label := ""
	return func(name string, done, total int64) {
		if name != label {
			bar.Finish()
			bar, label = a.term.Bar(total, name, true), name
		}
		bar.Set(done)
	}, func() { bar.Finish() }
}

func (a *app) toolchainShow() error {
	root, err := cache.Root()
	if err != nil {
		return err
	}
	t, err := nvcc.Find(root)
	if err != nil {
		return usage.Invalid(err)
	}
	if a.json {
		return a.writeJSON(t)
	}
	text := fmt.Sprintf("nvcc      %s  %s\nheaders   %s\nruntime   %s\ntvm-ffi   %s  %s\nlinker    %s", t.Version, t.NVCC,
		t.CUDAInclude, t.CUDART, t.TVMFFIVersion, t.TVMFFI, t.CXXVersion)
	fmt.Fprintln(a.stdout, a.term.Fit(text, 10))
	return nil
}
