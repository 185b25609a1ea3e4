//go:build !linux

package host

import (
	"context"
	"errors"

	"github.com/heddle-dev/heddle/discovery/gpu"
	"github.com/heddle-dev/heddle/internal/notify"
)

// watch has no events on other systems than Linux.
func watch(context.Context, gpu.Vendors, func(netdev string) bool, notify.Signal) (wait func() error) {
	return func() error { return errors.New("not Linux") }
}
