package trace

import (
	"crypto/sha1"
	"encoding/hex"
	"strings"
)

// Hash returns the content hash, 40 lower-case hex digits: SHA-1 over definition, language, entry point, binding,
// dependencies and sources. Name, author, description, target hardware and calling style are not part of it.
func (s *Solution) Hash() string {
	h := sha1.New()
	write := func(text string) { h.Write([]byte(text)) }
	write(s.Definition)
	write(string(s.Spec.Language))
	write(s.Spec.EntryPoint)
	write(s.Spec.Binding)
	for _, dep := range s.Spec.Dependencies {
		write(dep)
	}
	for _, src := range s.Sources {
		write(src.Path)
		write(src.Content)
	}
	return hex.EncodeToString(h.Sum(nil))
}

// Entry returns the file and symbol of the entry point. symbol is "" without "::".
func (s *Solution) Entry() (file, symbol string) {
	file, symbol, _ = strings.Cut(s.Spec.EntryPoint, "::")
	return file, symbol
}
