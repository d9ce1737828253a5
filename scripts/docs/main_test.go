package main

import (
	"bytes"
	"go/ast"
	"go/parser"
	"go/token"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"fisub/app"
	"fisub/remote"
)

// The generated pages are those that the code makes now.
func TestFresh(t *testing.T) {
	root := filepath.Join("..", "..")
	files, err := pages(root)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if got, err := os.ReadFile(filepath.Join(root, name)); err != nil || !bytes.Equal(got, want) {
			t.Errorf("%s is stale: run go generate ./docs", name)
		}
	}
	there, err := filepath.Glob(filepath.Join(root, "docs", "commands", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range there {
		if files["docs/commands/"+filepath.Base(file)] == nil {
			t.Errorf("%s is of no command: run go generate ./docs", file)
		}
	}
}

// A provider's Keys are those that its source asks a remote.Table for, with their types.
func TestRemoteKeys(t *testing.T) {
	methods := map[string]string{"String": remote.StringKey, "Bool": remote.BoolKey, "Int": remote.IntKey, "Float": remote.FloatKey,
		"Duration": remote.DurationKey, "Strings": remote.StringsKey, "Ints": remote.IntsKey}
	for kind, keys := range app.RemoteKeys() {
		sources, err := filepath.Glob(filepath.Join("..", "..", "remote", kind, "*.go"))
		if err != nil {
			t.Fatal(err)
		}
		asked := map[string]string{}
		for _, source := range sources {
			f, err := parser.ParseFile(token.NewFileSet(), source, nil, 0)
			if err != nil {
				t.Fatal(err)
			}
			ast.Inspect(f, func(n ast.Node) bool {
				call, ok := n.(*ast.CallExpr)
				if !ok || len(call.Args) != 2 {
					return true
				}
				method, ok := call.Fun.(*ast.SelectorExpr)
				if !ok {
					return true
				}
				table, isName := method.X.(*ast.Ident)
				key, isText := call.Args[0].(*ast.BasicLit)
				if isName && isText && table.Name == "t" && methods[method.Sel.Name] != "" {
					name, _ := strconv.Unquote(key.Value)
					asked[name] = methods[method.Sel.Name]
				}
				return true
			})
		}
		if kind == "" && len(asked) > len(keys) { // the tests of package remote ask for others
			asked = map[string]string{"provider": asked["provider"], "gpu": asked["gpu"], "limit": asked["limit"], "price": asked["price"]}
		}
		told := map[string]string{}
		for _, k := range keys {
			told[k.Name] = k.Type
			if k.Meaning == "" || k.Default == "" {
				t.Errorf("%s.%s: got default %q and meaning %q, want both", kind, k.Name, k.Default, k.Meaning)
			}
		}
		if !maps.Equal(asked, told) {
			t.Errorf("%s: its source asks for %v, its Keys are %v", kind, slices.Sorted(maps.Keys(asked)), slices.Sorted(maps.Keys(told)))
		}
	}
}
