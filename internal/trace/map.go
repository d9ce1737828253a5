package trace

import "iter"

// A Map is a string-keyed map that keeps insertion order. The zero Map is empty and ready for use. Copies are
// independent as long as only one is modified.
type Map[V any] struct {
	keys   []string
	values map[string]V
}

// Len returns the number of keys.
func (m *Map[V]) Len() int { return len(m.keys) }

// Keys returns the keys in order. The caller must not change the slice.
func (m *Map[V]) Keys() []string { return m.keys }

// Get returns the value of key. ok is false if the key is missing.
func (m *Map[V]) Get(key string) (value V, ok bool) {
	value, ok = m.values[key]
	return value, ok
}

// Set appends key, or replaces its value in place.
func (m *Map[V]) Set(key string, value V) {
	if m.values == nil {
		m.values = map[string]V{}
	}
	if _, ok := m.values[key]; !ok {
		m.keys = append(m.keys, key)
	}
	m.values[key] = value
}

// All yields keys and values in order.
func (m *Map[V]) All() iter.Seq2[string, V] {
	return func(yield func(string, V) bool) {
		for _, k := range m.keys {
			if !yield(k, m.values[k]) {
				return
			}
		}
	}
}
