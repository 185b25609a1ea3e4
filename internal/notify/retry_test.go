package notify

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"testing"
	"testing/synctest"
	"time"
)

func TestRetry(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		log := slog.New(slog.DiscardHandler)
		var r Retry
		failed := errors.New("failed")
		for _, seconds := range []int{1, 2, 4, 8, 16, 32, 60, 60} {
			least, begin := time.Duration(seconds)*time.Second, time.Now()
			<-r.After(t.Context(), log, failed)
			if got := time.Since(begin); got < least || got > least*6/5 {
				t.Errorf("after %s, want %s and up to a fifth more", got, least)
			}
		}
		if r.After(t.Context(), log, fmt.Errorf("%w: no machine", ErrNotYet)) != nil || r.After(t.Context(), log, nil) != nil {
			t.Error("a round that did not fail is retried")
		}
		begin := time.Now()
		<-r.After(t.Context(), log, failed)
		if got := time.Since(begin); got > 6*time.Second/5 {
			t.Errorf("after %s although the last round succeeded", got)
		}
		ended, cancel := context.WithCancel(t.Context())
		cancel()
		if r.After(ended, log, failed) != nil {
			t.Error("retried although the daemon ends")
		}
	})
}
