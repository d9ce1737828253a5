// Command docs generates docs/commands.md, docs/config.md, docs/events.md and docs/agents.md with their JSON Schemas,
// and the tables of keys in docs/remote.md and docs/remote. `go generate ./docs` runs it.
package main

import (
	"cmp"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	"regexp"
	"strings"

	"fisub/app"
	"fisub/app/outcome"
	"fisub/docs"
	"fisub/internal/config"
	"fisub/internal/event"
	"fisub/remote/providers"
)

const generated = "<!-- Written by `go generate`: edit its sources instead. -->\n\n"

func main() {
	files, err := pages("..") // go generate runs in docs
	for name, content := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join("..", name), content, 0o644))
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "docs:", err)
		os.Exit(1)
	}
}

// pages returns all generated files by their path below root.
func pages(root string) (map[string][]byte, error) {
	files := map[string][]byte{}
	commands, err := app.Reference()
	if err != nil {
		return nil, err
	}
	files["docs/commands.md"] = []byte(generated + commands)
	files["docs/config.md"] = []byte(configPage())
	stream, err := describe(reflect.TypeFor[event.Event](), filepath.Join(root, "internal/event/event.go"),
		filepath.Join(root, "internal/event/device.go"))
	if err != nil {
		return nil, err
	}
	files["docs/events.md"] = []byte(stream.page())
	if files["docs/event.schema.json"], err = stream.schema(event.Schema); err != nil {
		return nil, err
	}
	final, err := describe(reflect.TypeFor[outcome.Outcome](), filepath.Join(root, "app/outcome/outcome.go"))
	if err != nil {
		return nil, err
	}
	files["docs/agents.md"] = []byte(generated + topic("agents") + final.tables())
	if files["docs/final.schema.json"], err = final.schema(outcome.Schema); err != nil {
		return nil, err
	}
	for _, name := range []string{"docs/remote.md", "docs/remote/slurm.md", "docs/remote/aws.md", "docs/remote/modal.md",
		"docs/remote/kubernetes.md"} {
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
	b.WriteString(generated + topic("config"))
	for _, s := range new(config.Config).Sections() {
		fmt.Fprintf(&b, "\n## [%s]\n\n%s\n\n", s.Name, s.Help)
		b.WriteString("| key | type | default | meaning | example |\n|---|---|---|---|---|\n")
		for _, k := range s.Keys {
			kind := k.Type()
			if form := cmp.Or(k.Form, strings.Join(k.OneOf, ", ")); form != "" {
				kind += ": " + form
			}
			fmt.Fprintf(&b, "| `%s` | %s | %s | %s | `%s = %s` |\n",
				k.Name, cell(kind), cell(k.Missing()), cell(k.Help), k.Name, k.Example)
		}
	}
	b.WriteString("\n## [remote.NAME]\n\n" +
		"Hosts for `fisub remote`: [remote.md](remote.md) has the keys of every kind of provider.\n")
	return b.String()
}

func keyTable(keys []config.Key) string {
	var b strings.Builder
	b.WriteString("| key | type | meaning | default |\n|---|---|---|---|\n")
	for _, k := range keys {
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", k.Name, k.Type(), cell(k.Help), cell(k.Missing()))
	}
	return b.String()
}

func cell(s string) string { return strings.ReplaceAll(s, "|", `\|`) }

// topic returns the text of `fisub help NAME`, which begins the page on the same subject.
func topic(name string) string {
	t, err := docs.Find(name)
	if err != nil {
		panic(err)
	}
	text, _, _ := strings.Cut(t.Text, "\ndocs/"+name+".md ") // the last line may name the page
	return strings.TrimRight(text, "\n") + "\n"
}

// withTables fills in a provider's table of keys between the comments "keys of KIND" and "end of keys" in text, and a
// help topic between "topic NAME" and "end of topic".
func withTables(text []byte) ([]byte, error) {
	keys := providers.Keys()
	found := false
	var fault error
	out := marked.ReplaceAllStringFunc(string(text), func(part string) string {
		found = true
		m := marked.FindStringSubmatch(part)
		content, kind := "", strings.TrimSuffix(m[3], "every kind")
		switch {
		case m[2] == "topic ":
			content = topic(kind)
		case keys[kind] != nil:
			content = keyTable(keys[kind])
		default:
			fault = fmt.Errorf("no provider is of kind %q", kind)
		}
		return m[1] + content + m[4]
	})
	if !found {
		fault = errors.New("no comment says where the keys go")
	}
	return []byte(out), fault
}

var marked = regexp.MustCompile(`(?s)(<!-- (keys of |topic )([a-z ]+) -->\n).*?(<!-- end of (?:keys|topic) -->\n)`)
