package notify_test

import (
	"testing"

	"github.com/heddle-dev/heddle/internal/notify"
)

func TestSignalsCoalesce(t *testing.T) {
	s := notify.New()
	s.Notify()
	s.Notify()
	<-s
	select {
	case <-s:
		t.Error("two signals were received twice")
	default:
	}
	s.Notify()
	<-s
}

func TestNilSignalIsNeverSet(*testing.T) {
	var s notify.Signal
	s.Notify()
}
