//go:build !linux

package host

import (
	"context"
	"errors"
)

// watch has no events on other systems than Linux.
func watch(context.Context, func(netdev string) bool, chan<- struct{}) (wait func() error) {
	return func() error { return errors.New("not Linux") }
}
