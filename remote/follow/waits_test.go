package follow_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

// waits lists the functions of the providers that wait, and for what. None of them follows a job.
var waits = map[string]string{
	"work.Send":  "for a host that is unreachable during an upload",
	"work.Begin": "for the kernel to see a new program as closed",
}

// Only this package waits for jobs.
func TestNoProviderWaits(t *testing.T) {
	sleeps := []string{"Sleep", "After", "AfterFunc", "Tick", "NewTimer", "NewTicker"}
	seen := map[string]bool{}
	for _, provider := range []string{"aws", "kubernetes", "loopback", "modal", "slurm", "ssh", "work"} {
		files, err := filepath.Glob(filepath.Join("..", provider, "*.go"))
		if err != nil || len(files) == 0 {
			t.Fatalf("%s: %v, %v", provider, files, err)
		}
		for _, name := range files {
			if strings.HasSuffix(name, "_test.go") {
				continue
			}
			file, err := parser.ParseFile(token.NewFileSet(), name, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			for _, d := range file.Decls {
				where := provider
				if f, ok := d.(*ast.FuncDecl); ok {
					where += "." + f.Name.Name
				}
				ast.Inspect(d, func(n ast.Node) bool {
					s, ok := n.(*ast.SelectorExpr)
					if !ok {
						return true
					}
					from, ok := s.X.(*ast.Ident)
					if !ok || from.Name != "time" && from.Name != "remote" || !slices.Contains(sleeps, s.Sel.Name) {
						return true
					}
					if seen[where] = true; waits[where] == "" {
						t.Errorf("%s: %s.%s in %s: a job is followed by package follow", name, from.Name, s.Sel.Name, where)
					}
					return true
				})
			}
		}
	}
	for where := range waits {
		if !seen[where] {
			t.Errorf("%s does not wait: remove it from the list", where)
		}
	}
}
