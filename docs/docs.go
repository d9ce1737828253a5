// Package docs holds the texts that are both read on the web and shown by `fisub help TOPIC`.
package docs

import (
	"embed"
	"fmt"
	"io/fs"
	"path"
	"strings"
)

//go:generate env CGO_ENABLED=0 go run -tags= fisub/scripts/docs

//go:embed topics/*.md
var topics embed.FS

// A Topic is a page about something that is not one command.
type Topic struct {
	Name  string // of the file, without its ending
	Title string
	Text  string // Markdown, the title in its first line
}

// Topics are all of them, by name.
func Topics() []Topic {
	names, err := fs.Glob(topics, "topics/*.md")
	if err != nil {
		panic(err)
	}
	all := make([]Topic, len(names))
	for i, name := range names {
		text, err := topics.ReadFile(name)
		if err != nil {
			panic(err)
		}
		title, _, _ := strings.Cut(string(text), "\n")
		all[i] = Topic{Name: strings.TrimSuffix(path.Base(name), ".md"), Title: strings.TrimPrefix(title, "# "),
			Text: string(text)}
	}
	return all
}

// Find gives the topic of that name.
func Find(name string) (Topic, error) {
	for _, t := range Topics() {
		if t.Name == name {
			return t, nil
		}
	}
	return Topic{}, fmt.Errorf("docs: no topic %q", name)
}
