package plugin

import (
	"bytes"
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/informers"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"
)

// An API server without a kind keeps the scheduler from being ready: the log names
// that kind, and only that.
func TestUnsyncedKindsAreNamed(t *testing.T) {
	for _, served := range []bool{false, true} {
		synctest.Test(t, func(t *testing.T) {
			client := fake.NewClientset()
			client.PrependReactor("list", "devicetaintrules", func(clienttesting.Action) (bool, runtime.Object, error) {
				return !served, nil, apierrors.NewNotFound(schema.GroupResource{Group: "resource.k8s.io", Resource: "devicetaintrules"}, "")
			})
			factory := informers.NewSharedInformerFactory(client, 0)
			factory.Core().V1().Nodes().Informer()
			factory.Resource().V1().DeviceTaintRules().Informer()
			ctx, stop := context.WithTimeout(t.Context(), 2*unsyncedAfter+1)
			defer factory.Shutdown()
			defer stop()
			factory.Start(ctx.Done())
			var out bytes.Buffer
			reportUnsynced(ctx, factory, slog.New(slog.NewTextHandler(&out, nil)))
			want := 0
			if !served {
				want = 2
			}
			if got := strings.Count(out.String(), "kinds=[v1.DeviceTaintRule]"); got != want || strings.Count(out.String(), "not ready") != want {
				t.Errorf("served %t: %d reports, want %d:\n%s", served, got, want, out.String())
			}
		})
	}
}
