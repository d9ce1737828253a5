//go:build linux && cgo && !amd64

package vgpu

type nativeRun struct{}

func translate([]inst) []nativeRun { return nil }
