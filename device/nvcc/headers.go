package nvcc

import (
	"context"
	_ "embed"
	"fmt"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"

	"fisub/internal/cache"
)

//go:embed headers.txt
var pinnedHeaders string

// headerLibraries are the headers that InstallHeaders fetches, by the wheel that has them.
var headerLibraries = map[string]*regexp.Regexp{
	"nvidia-cublas": regexp.MustCompile(`^cublas(Lt|_v2|_api)\.h$`),
	"nvidia-curand": regexp.MustCompile(`^curand\w*\.h$`),
}

// HeadersOf returns the pinned wheel with a header; ok is false if there is none.
func HeadersOf(header string) (c Component, ok bool) {
	all := components(pinnedHeaders)
	i := slices.IndexFunc(all, func(c Component) bool {
		return headerLibraries[c.Name].MatchString(filepath.Base(header))
	})
	if i < 0 {
		return Component{}, false
	}
	return all[i], true
}

// HeaderFolders returns the folders below root of the headers that InstallHeaders has fetched.
func HeaderFolders(root string) (folders []string) {
	for _, c := range components(pinnedHeaders) {
		if dir, ok := installedAs(root, c.headersKey()); ok {
			folders = append(folders, filepath.Join(dir, "include"))
		}
	}
	return folders
}

// CUDA12 is the version whose headers InstallCUDA12 fetches. Its compiler is in no wheel.
const CUDA12 = "12.9"

//go:embed cuda12.txt
var pinnedCUDA12 string

func cuda12Key() string { return cache.Key("cuda12 1", machine(), pinnedCUDA12) }

// CUDA12Installed reports whether the headers of CUDA 12.9 are below root, and returns their folder.
func CUDA12Installed(root string) (dir string, ok bool) {
	dir, ok = installedAs(root, cuda12Key())
	return filepath.Join(dir, "include"), ok
}

// InstallCUDA12 is Install for the headers of CUDA 12.9.
func InstallCUDA12(ctx context.Context, root string, progress func(string, int64, int64)) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("toolchain: CUDA %s has no wheels for %s", CUDA12, runtime.GOOS)
	}
	return install(ctx, root, cuda12Key(), components(pinnedCUDA12),
		[]part{{"nvidia/cuda_runtime/include/", "include/"}, {"nvidia/cuda_cccl/include/", "include/"}}, progress)
}

func (c *Component) headersKey() string { return cache.Key("headers 1", machine(), c.line) }

// InstallHeaders is Install for the headers of a wheel that HeadersOf returned. The wheel's libraries are not kept.
func InstallHeaders(ctx context.Context, root string, c Component, progress func(string, int64, int64)) error {
	if runtime.GOOS != "linux" {
		return fmt.Errorf("toolchain: %s has no wheel for %s", c.Name, runtime.GOOS)
	}
	return install(ctx, root, c.headersKey(), []Component{c}, []part{{"nvidia/cu13/include/", "include/"}}, progress)
}
