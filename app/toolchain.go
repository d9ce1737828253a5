package app

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"fisub/device/nvcc"
	"fisub/internal/cache"
	"fisub/internal/ui"
)

func (a *app) toolchainCommand() *cli.Command {
	return &cli.Command{
		Name:  "toolchain",
		Usage: "the CUDA compiler and the TVM-FFI library that submissions are built with",
		Subcommands: []*cli.Command{
			{Name: "install", Usage: "fetch what this machine lacks from PyPI into the cache", Action: a.toolchainInstall,
				Description: "Versions and hashes are pinned. Nothing is fetched where a toolkit and apache-tvm-ffi are installed.\n\n   fisub toolchain install",
				Flags:       []cli.Flag{&cli.BoolFlag{Name: "force", Usage: "fetch although a toolkit is installed"}}},
			{Name: "show", Usage: "say which compiler and libraries are used", Action: a.toolchainShow, Description: "   fisub toolchain show"},
		},
	}
}

func (a *app) toolchainInstall(c *cli.Context) error {
	if err := noArgs(c); err != nil {
		return err
	}
	root, err := cache.Root()
	if err != nil {
		return err
	}
	if t, err := nvcc.Find(root); err == nil && !c.Bool("force") {
		if globalBool(c, "json") {
			return writeJSON(a.stdout, t)
		}
		fmt.Fprintf(a.stdout, "%s in %s\n", t, t.NVCC)
		return nil
	}
	if _, ok := nvcc.Installed(root); !ok {
		a.term.Note("installing the CUDA compiler and TVM-FFI into %s:", root)
		for _, comp := range nvcc.Components() {
			a.term.Note("  %s %s", comp.Name, comp.Version)
		}
	}
	var bar *ui.Bar
	label := ""
	err = nvcc.Install(c.Context, root, func(name string, done, total int64) {
		if name != label {
			bar.Finish()
			bar, label = a.term.Bar(total, name, true), name
		}
		bar.Set(done)
	})
	bar.Finish()
	if err != nil {
		if errors.Is(err, nvcc.ErrNoPip) {
			return invalid(err)
		}
		return err
	}
	return a.toolchainShow(c)
}

func (a *app) toolchainShow(c *cli.Context) error {
	root, err := cache.Root()
	if err != nil {
		return err
	}
	t, err := nvcc.Find(root)
	if err != nil {
		return invalid(err)
	}
	if globalBool(c, "json") {
		return writeJSON(a.stdout, t)
	}
	fmt.Fprintf(a.stdout, "nvcc      %s  %s\nheaders   %s\nruntime   %s\ntvm-ffi   %s  %s\nlinker    %s\n", t.Version, t.NVCC, t.CUDAInclude,
		t.CUDART, t.TVMFFIVersion, t.TVMFFI, t.CXXVersion)
	return nil
}
