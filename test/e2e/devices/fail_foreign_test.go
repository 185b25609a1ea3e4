//go:build e2e && linux

package devices

import (
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	reported "github.com/heddle-dev/heddle/deviceplugin/report"
)

// unready is the body of /readyz while it answers 503.
func (r *rig) unready(t *testing.T) string {
	t.Helper()
	_, err := r.get(t.Context(), "/readyz")
	var status *apierrors.StatusError
	if !errors.As(err, &status) || status.ErrStatus.Details == nil {
		t.Fatalf("readyz: %v", err)
	}
	return fmt.Sprint(status.ErrStatus.Details.Causes)
}

// TestDeviceClassThatClaimsTheResource: where a DeviceClass stands for the
// resource, the scheduler has its requests met by DRA, and a device plugin
// would hand out the same devices a second time. heddle does not register it, reports
// why, and serve it once the class has gone.
func TestDeviceClassThatClaimsTheResource(t *testing.T) {
	r := failing(t)
	if err := r.plugin.stop(t.Context()); err != nil {
		t.Fatal(err)
	}
	name := gpuResource
	classes := r.client.ResourceV1().DeviceClasses()
	class := &resourcev1.DeviceClass{
		ObjectMeta: metav1.ObjectMeta{Name: "whole-gpus"},
		Spec:       resourcev1.DeviceClassSpec{ExtendedResourceName: &name},
	}
	if _, err := classes.Create(t.Context(), class, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	gone := sync.OnceValue(func() error { return classes.Delete(r.ctx(t), class.Name, metav1.DeleteOptions{}) })
	t.Cleanup(func() { _ = gone() })

	const owner = "DeviceClass whole-gpus (spec.extendedResourceName)"
	mark := r.plugin.log.mark()
	if err := r.plugin.start(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.waitLog(t, mark, "leaving the resource to a conflicting plugin")
	r.waitRegistrations(t, mark, 1) // HCAs are served.
	want := fmt.Sprintf("heddle_resource_claimed{owner=%q,resource=%q} 1", owner, gpuResource)
	if lines := r.metrics(t, "heddle_resource_claimed"); !slices.Contains(lines, want) {
		t.Errorf("metrics have %q, want %q", lines, want)
	}
	if out := r.unready(t); !strings.Contains(out, gpuResource+" is served by "+owner) {
		t.Errorf("readyz: %s", out)
	}
	if served := r.served(t, gpuResource); served.Registered || served.Owner != owner {
		t.Errorf("doctor gets %+v", served)
	}
	r.waitAllocatable(t, gpuResource, 0)
	if got := registrations(r.plugin.log.since(mark)); got != 1 {
		t.Errorf("%d registrations, want that of HCAs alone", got)
	}

	if err := gone(); err != nil {
		t.Fatal(err)
	}
	begin := time.Now()
	r.waitRegistrations(t, mark, resources)
	t.Logf("served %.0f s after the DeviceClass went", time.Since(begin).Seconds())
	r.waitAllocatable(t, gpuResource, 8)
	r.lands(t, "own")
	r.consistent(t)
}

// served is what the plugin reports to doctor about a resource.
func (r *rig) served(t *testing.T, name string) reported.Resource {
	t.Helper()
	text, err := r.get(t.Context(), reported.Path)
	if err != nil {
		t.Fatal(err)
	}
	var all reported.Report
	if err := json.Unmarshal([]byte(text), &all); err != nil {
		t.Fatal(err)
	}
	for _, one := range all.Resources {
		if one.Name == name {
			return one
		}
	}
	t.Fatalf("nothing is reported of %s: %s", name, text)
	return reported.Resource{}
}
