//go:build !linux

package host

import (
	"context"
	"errors"

	"github.com/heddle-dev/heddle/internal/notify"
)

// watch has no events on other systems than Linux.
func (*Host) watch(context.Context, notify.Signal) (wait func() error) {
	return func() error { return errors.New("not Linux") }
}
