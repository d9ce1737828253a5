package git

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

func TestScrub(t *testing.T) {
	for _, tc := range []struct{ text, want string }{
		{"https://github.com/a/b.git", "https://github.com/a/b.git"},
		{"https://ghp_token@github.com/a/b.git", "https://github.com/a/b.git"},
		{"fatal: unable to access 'https://me:p@ss@host/x/': refused", "fatal: unable to access 'https://host/x/': refused"},
		{"http://host/x?private_token=abc and ssh://git:pw@host:22/y#z", "http://host/x and ssh://host:22/y"},
		{"git@github.com:a/b.git", "git@github.com:a/b.git"},
		{"/srv/a@b/c.git", "/srv/a@b/c.git"},
	} {
		if got := scrub(tc.text); got != tc.want {
			t.Errorf("got %q, want %q", got, tc.want)
		}
	}
}

// repository creates a repository with files in a commit. The returned function runs git in it.
func repository(t *testing.T, files map[string]string) (r *Repository, git func(args ...string) string) {
	t.Helper()
	if _, err := exec.LookPath("git"); err != nil {
		t.Skip("no git")
	}
	dir := t.TempDir()
	t.Setenv("GIT_CONFIG_GLOBAL", os.DevNull)
	for _, who := range []string{"AUTHOR", "COMMITTER"} {
		t.Setenv("GIT_"+who+"_NAME", "a")
		t.Setenv("GIT_"+who+"_EMAIL", "a@example.org")
	}
	git = func(args ...string) string {
		t.Helper()
		out, err := exec.Command("git", append([]string{"-C", dir}, args...)...).CombinedOutput()
		if err != nil {
			t.Fatalf("git %v: %v\n%s", args, err, out)
		}
		return strings.TrimSpace(string(out))
	}
	git("init", "-q", "-b", "main")
	for name, text := range files {
		write(t, filepath.Join(dir, name), text)
	}
	git("add", ".")
	git("commit", "-q", "-m", "first")
	r, err := Open(t.Context(), dir)
	if err != nil {
		t.Fatal(err)
	}
	return r, git
}

func write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(name, []byte(text), 0o755); err != nil {
		t.Fatal(err)
	}
}

// A checkout ignores this clone's filters, hooks, attributes, line endings and replacements.
func TestCheckout(t *testing.T) {
	r, git := repository(t, map[string]string{"solution/cuda/k.cu": "one\ntwo\n", ".gitattributes": "*.cu filter=upper\n"})
	git("config", "core.eol", "crlf")
	global := filepath.Join(t.TempDir(), "gitconfig")
	write(t, global, "[filter \"upper\"]\n\tsmudge = tr a-z A-Z\n[core]\n\tautocrlf = true\n")
	t.Setenv("GIT_CONFIG_GLOBAL", global)
	write(t, filepath.Join(r.Top, ".git", "info", "attributes"), "*.cu ident eol=crlf\n")
	ran := filepath.Join(r.Top, "ran")
	write(t, filepath.Join(r.Top, ".git", "hooks", "post-checkout"), "#!/bin/sh\ntouch "+ran+"\n")
	t.Setenv("GIT_DIR", filepath.Join(t.TempDir(), "elsewhere"))
	t.Setenv("GIT_INDEX_FILE", filepath.Join(t.TempDir(), "index"))
	head, err := r.Head(t.Context())
	if err != nil || head.Branch != "main" || len(head.Commit) != 40 {
		t.Fatalf("got %+v, %v, want a commit on main", head, err)
	}
	dir, remove, err := r.Checkout(t.Context(), head.Commit)
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile(filepath.Join(dir, "solution", "cuda", "k.cu"))
	if err != nil || string(got) != "one\ntwo\n" {
		t.Errorf("got %q, %v, want what was committed", got, err)
	}
	if _, err := os.Stat(ran); err == nil {
		t.Error("the hook of the clone ran")
	}
	remove()
	if _, err := os.Stat(dir); err == nil {
		t.Errorf("%s is left", dir)
	}
}

func TestChanges(t *testing.T) {
	odd := "solution/cuda/a b\n*\".h"
	r, git := repository(t, map[string]string{"k": "1", "gone": "1", "staged": "1", "same": "1", odd: "1",
		".gitignore": "*.o\n"})
	write(t, filepath.Join(r.Top, "k"), "2")
	write(t, filepath.Join(r.Top, odd), "2")
	write(t, filepath.Join(r.Top, "staged"), "2")
	git("add", "staged")
	os.Remove(filepath.Join(r.Top, "gone"))
	write(t, filepath.Join(r.Top, "new"), "1")
	write(t, filepath.Join(r.Top, "x.o"), "1")
	got, err := r.Changes(t.Context(), "k", "gone", "staged", "same", odd, "new", "x.o", "*", "nowhere")
	want := []Change{{"gone", "deleted"}, {"k", "modified"}, {odd, "modified"}, {"staged", "modified"},
		{"new", "untracked"}, {"x.o", "ignored"}}
	if err != nil || !slices.Equal(got, want) {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
}

// Tags are ordered by time, then by number. Tags of trees are left out, tags of tags are included.
func TestTags(t *testing.T) {
	r, git := repository(t, map[string]string{"k": "1"})
	t.Setenv("GIT_COMMITTER_DATE", "@2000000000 +0000")
	for _, name := range []string{"s-9", "s-10", "s-2"} {
		if _, err := r.Tag(t.Context(), name, "HEAD", "of "+name); err != nil {
			t.Fatal(err)
		}
	}
	t.Setenv("GIT_COMMITTER_DATE", "@1900000000 +0000")
	git("tag", "-a", "-m", "of a tag", "outer", "s-2")
	t.Setenv("GIT_COMMITTER_DATE", "@2100000000 +0000")
	git("tag", "-a", "-m", "a tree", "tree", "HEAD^{tree}")
	git("tag", "light")
	tags, err := r.Tags(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, tag := range tags {
		names = append(names, tag.Name)
		if tag.Commit != git("rev-parse", "HEAD") || tag.Annotated == (tag.Name == "light") ||
			strings.HasPrefix(tag.Name, "s-") && tag.Message != "of "+tag.Name {
			t.Errorf("got %+v", tag)
		}
	}
	if want := []string{"s-10", "s-9", "s-2", "outer", "light"}; !slices.Equal(names, want) {
		t.Errorf("got %v, want %v", names, want)
	}
	if _, err := r.Tag(t.Context(), "s-9", "HEAD", ""); err == nil {
		t.Error("a tag was moved")
	}
	for _, name := range []string{"a..b", "-x", "x.lock", "a b", "", "x~1"} {
		if r.CheckName(t.Context(), name) == nil {
			t.Errorf("%q: got a name, want an error", name)
		}
	}
}

func TestRevisions(t *testing.T) {
	r, git := repository(t, map[string]string{"sub/k": "1", "sub/other": "1", ".gitignore": "*.o\n"})
	head := git("rev-parse", "HEAD")
	for revision, want := range map[string]string{"HEAD": head, "main": head, head[:8]: head, "HEAD~1": "", "--all": "",
		"": "", "a b": ""} {
		if got, err := r.Commit(t.Context(), revision); got != want || err != nil {
			t.Errorf("%q: got %q, %v, want %q", revision, got, err, want)
		}
	}
	sub := filepath.Join(r.Top, "sub")
	state := func(want bool, names ...string) {
		t.Helper()
		if commit, dirty := State(t.Context(), sub, names...); commit != head || dirty != want {
			t.Errorf("%v: got %s, %t, want %s, %t", names, commit, dirty, head, want)
		}
	}
	write(t, filepath.Join(sub, "other"), "2")
	write(t, filepath.Join(sub, "k.o"), "2")
	state(false, "k", "k.o", "absent")
	state(true, "k", "other")
	if !r.Tracked(t.Context(), "sub/k") || r.Tracked(t.Context(), "sub/k.o") || r.Tracked(t.Context(), "k") {
		t.Error("got another index than sub/k")
	}
	if commit, _ := State(t.Context(), t.TempDir(), "k"); commit != "" {
		t.Errorf("outside of a repository: got %s", commit)
	}
	if got := Root(sub); got != r.Top {
		t.Errorf("got root %s, want %s", got, r.Top)
	}
}

func TestLinkOut(t *testing.T) {
	top := t.TempDir()
	root := filepath.Join(top, "root")
	write(t, filepath.Join(root, "sub", "file"), "1")
	write(t, filepath.Join(top, "beside"), "1")
	for _, tc := range []struct {
		target string
		out    bool
	}{{"file", false}, {"../sub/file", false}, {"absent", false}, {"link", false}, {"../sub/link", false}, {"../../beside", true}, {"../../absent", true},
		{"../../root/sub/file", false},
		{filepath.Join(root, "sub", "file"), true}, {"/absent", true}, {"hop", true}} {
		name := filepath.Join(root, "sub", "link")
		os.Remove(name)
		os.Remove(filepath.Join(root, "sub", "hop"))
		if err := os.Symlink("../../beside", filepath.Join(root, "sub", "hop")); err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(tc.target, name); err != nil {
			t.Fatal(err)
		}
		t.Chdir(root)
		for _, args := range [][2]string{{root, name}, {".", "sub/link"}, {".", name}, {root, "sub/link"}} {
			if got := LinkOut(args[0], args[1]); (got == tc.target) != tc.out || !tc.out && got != "" {
				t.Errorf("%s from %q: got %q, want out: %t", tc.target, args, got, tc.out)
			}
		}
	}
	if got := LinkOut(root, filepath.Join(root, "sub", "file")); got != "" {
		t.Errorf("no link: got %q", got)
	}
}
