package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	resourcev1 "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

// listedFor is the time for which one list is used: every resource of every node asks.
const listedFor = time.Minute

// deviceClasses are the extended resources that DeviceClasses stand for: the
// scheduler hands such a request to DRA, and a device plugin's devices of the
// same name would be allocated a second time.
type deviceClasses struct {
	mu     sync.Mutex // guards all below; held while asking, so that one asks
	listed time.Time
	byName map[string]string // extended resource to DeviceClass
}

// DeviceClass names the DeviceClass that stands for a resource, such as
// "DeviceClass gpu.nvidia.com (spec.extendedResourceName)"; empty if none does,
// or without that API or the right to read it. An error means that it is not
// known.
func (c *Client) DeviceClass(ctx context.Context, resource string) (string, error) {
	if c == nil {
		return "", nil
	}
	known := &c.classes
	known.mu.Lock()
	defer known.mu.Unlock()
	if time.Since(known.listed) > listedFor {
		byName, err := c.listClasses(ctx)
		if err != nil {
			return "", fmt.Errorf("list DeviceClasses: %w", err)
		}
		known.byName, known.listed = byName, time.Now()
	}
	if class := known.byName[resource]; class != "" {
		return "DeviceClass " + class + " (spec.extendedResourceName)", nil
	}
	return "", nil
}

// listClasses asks the API server's cache.
func (c *Client) listClasses(ctx context.Context) (map[string]string, error) {
	body, err := c.core.RESTClient().Get().AbsPath("/apis/resource.k8s.io/v1/deviceclasses").
		Param("resourceVersion", "0").SetHeader("Accept", "application/json").DoRaw(ctx)
	if apierrors.IsNotFound(err) || apierrors.IsForbidden(err) || apierrors.IsUnauthorized(err) {
		return map[string]string{}, nil
	}
	if err != nil {
		return nil, err
	}
	var list resourcev1.DeviceClassList
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, err
	}
	byName := map[string]string{}
	for i := range list.Items {
		if name := list.Items[i].Spec.ExtendedResourceName; name != nil {
			byName[*name] = list.Items[i].Name
		}
	}
	return byName, nil
}
