package git

import (
	"fmt"
	"strings"
)

// A sign maps substrings of a git message, separated by "|", to a hint.
type sign struct{ words, hint string }

var signs = []sign{
	{"tell me who you are|empty ident", "git config --global user.name NAME && git config --global user.email ADDRESS"},
	{"dubious ownership", "another user owns the folder: git config --global --add safe.directory FOLDER"},
	{"gpg", "tag.gpgSign is set; for unsigned tags: git config tag.gpgSign false"},
}

// pushSigns are the signs for a failed push of an existing tag. %s in a hint is the command that retries the push.
var pushSigns = []sign{
	{"already exists", "tags are never overwritten: git fetch --tags, then set another name: tag in [submit] of " +
		"config.toml"},
	{"could not read username|authentication failed|terminal prompts disabled|permission denied|publickey|403|401",
		"the tag exists locally; log in to the remote, then: %s"},
	{"hook declined|pre-receive|pre-push", "the tag exists locally, but a hook rejected it; after fixing that: %s"},
	{"could not resolve|could not connect|timed out|unable to access|connection",
		"the tag exists locally; when the network is back: %s"},
	{"", "the tag exists locally; to try again: %s"},
}

// pushHint returns the hint for a failed push of tag.
func pushHint(err error, remote, tag string) string {
	again := fmt.Sprintf("git push %s refs/tags/%s", remote, tag)
	return strings.ReplaceAll(read(pushSigns, err.Error()), "%s", again)
}

func read(signs []sign, text string) string {
	text = strings.ToLower(text)
	for _, s := range signs {
		for word := range strings.SplitSeq(s.words, "|") {
			if strings.Contains(text, word) {
				return s.hint
			}
		}
	}
	return ""
}
