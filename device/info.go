package device

import "fisub/internal/event"

// These types describe a device and what happens on it. They belong to the format of events.
type (
	Info       = event.Device
	Activity   = event.Activity
	Stamp      = event.Stamp
	Reading    = event.Reading
	During     = event.During
	GPUProcess = event.GPUProcess
)
