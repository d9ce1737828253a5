// Command docs writes the pages that are made of the code: docs/commands, docs/config.md, docs/events.md with its JSON Schema,
// and the tables of keys in docs/remote.md and docs/remote. It is run by `go generate ./docs`.
package main

import (
	"bytes"
	"cmp"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"fisub/app"
	"fisub/internal/config"
	"fisub/internal/manual"
)

const generated = "<!-- Written by `go generate`; edit what it is made of instead. -->\n\n"

func main() {
	root, err := filepath.Abs("..") // go generate runs in docs
	if err == nil {
		err = write(root)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

func write(root string) error {
	files, err := pages(root)
	if err != nil {
		return err
	}
	stale, err := filepath.Glob(filepath.Join(root, "docs", "commands", "*.md"))
	if err != nil {
		return err
	}
	for _, file := range stale {
		name, err := filepath.Rel(root, file)
		if err != nil {
			return err
		}
		if files[name] == nil {
			if err := os.Remove(file); err != nil {
				return err
			}
		}
	}
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(root, name), content, 0o644); err != nil {
			return err
		}
	}
	return nil
}

// pages gives all files that are generated, by their path below root.
func pages(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	tree := app.Manual()
	files["docs/commands/README.md"] = []byte(manual.Index(tree))
	for _, c := range tree.Commands {
		files["docs/commands/"+manual.FileName(c)] = []byte(manual.Page(c))
	}
	files["docs/config.md"] = []byte(configPage())
	stream, err := readEvents(filepath.Join(root, "internal", "event", "event.go"), filepath.Join(root, "device", "info.go"))
	if err != nil {
		return nil, err
	}
	files["docs/events.md"] = []byte(stream.page())
	if files["docs/event.schema.json"], err = stream.schema(); err != nil {
		return nil, err
	}
	for _, name := range []string{"docs/remote.md", "docs/remote/slurm.md", "docs/remote/aws.md", "docs/remote/modal.md"} {
		text, err := os.ReadFile(filepath.Join(root, name))
		if err == nil {
			files[name], err = withTables(text)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
	}
	return files, nil
}

func configPage() string {
	var b strings.Builder
	b.WriteString(generated + "# config.toml\n\nThe description of a submission. The contest's packer reads name, definition and author of `[solution]`, " +
		"and language,\nentry\\_point and destination\\_passing\\_style of `[build]`; fisub reads all of this. An unknown key or table is an error.\n")
	for _, s := range new(config.Config).Sections() {
		fmt.Fprintf(&b, "\n## [%s]\n\n%s\n\n", s.Name, s.Help)
		b.WriteString("| key | type | where it is missing | meaning | example |\n|---|---|---|---|---|\n")
		for _, k := range s.Keys {
			kind := k.Type()
			if form := cmp.Or(k.Form, strings.Join(k.OneOf, ", ")); form != "" {
				kind += ": " + form
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s = %s` |\n", k.Name, cell(kind), cell(k.Missing()), cell(k.Help), k.Name, k.Example)
		}
	}
	b.WriteString("\n## [remote.NAME]\n\nHosts for `fisub remote`; [remote.md](remote.md) says how each kind is set up. The keys of every kind:\n\n")
	keys := app.RemoteKeys()
	b.WriteString(keyTable(keys[""]))
	for _, kind := range slices.Sorted(maps.Keys(keys)) {
		if kind != "" {
			fmt.Fprintf(&b, "\n### provider = \"%s\"\n\n%s", kind, keyTable(keys[kind]))
		}
	}
	return b.String()
}

func keyTable(keys []config.Key) string {
	var b strings.Builder
	b.WriteString("| key | type | meaning | where it is missing |\n|---|---|---|---|\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.Type(), cell(k.Help), cell(k.Missing()))
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// withTables puts the table of a provider's keys between each pair of the comments "keys of KIND" and "end of keys" in text.
func withTables(text []byte) ([]byte, error) {
	var out bytes.Buffer
	keys := app.RemoteKeys()
	found := false
	for {
		head, rest, ok := bytes.Cut(text, []byte("<!-- keys of "))
		out.Write(head)
		if !ok {
			break
		}
		found = true
		kind, rest, ok := bytes.Cut(rest, []byte(" -->\n"))
		_, rest, end := bytes.Cut(rest, []byte("<!-- end of keys -->\n"))
		name := string(kind)
		if name == "every kind" {
			name = ""
		}
		if !ok || !end || keys[name] == nil {
			return nil, fmt.Errorf("the comment about the keys of %q is not whole", kind)
		}
		fmt.Fprintf(&out, "<!-- keys of %s -->\n%s<!-- end of keys -->\n", kind, keyTable(keys[name]))
		text = rest
	}
	if !found {
		return nil, fmt.Errorf("no comment says where the keys go")
	}
	return out.Bytes(), nil
}
