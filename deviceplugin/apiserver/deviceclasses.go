package apiserver

import (
	"context"
	"encoding/json"
	"fmt"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
)

const (
	// classesPath is the API server's path of DeviceClasses.
	classesPath = "/apis/resource.k8s.io/v1/deviceclasses"
	// listedFor is the time for which one list is used: every resource of every node asks.
	listedFor = time.Minute
)

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
			return "", err
		}
		known.byName, known.listed = byName, time.Now()
	}
	if class := known.byName[resource]; class != "" {
		return "DeviceClass " + class + " (spec.extendedResourceName)", nil
	}
	return "", nil
}

// listClasses asks the API server's cache, and decodes the two fields that matter: the
// typed API would cost memory.
func (c *Client) listClasses(ctx context.Context) (map[string]string, error) {
	body, err := c.rest.Get().AbsPath(classesPath).Param("resourceVersion", "0").
		SetHeader("Accept", "application/json").DoRaw(ctx)
	switch {
	case apierrors.IsNotFound(err), apierrors.IsForbidden(err), apierrors.IsUnauthorized(err):
		return map[string]string{}, nil
	case err != nil:
		return nil, fmt.Errorf("list DeviceClasses: %w", err)
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name string `json:"name"`
			} `json:"metadata"`
			Spec struct {
				ExtendedResourceName string `json:"extendedResourceName"`
			} `json:"spec"`
		} `json:"items"`
	}
	if err := json.Unmarshal(body, &list); err != nil {
		return nil, fmt.Errorf("decode DeviceClasses: %w", err)
	}
	byName := map[string]string{}
	for _, item := range list.Items {
		if name := item.Spec.ExtendedResourceName; name != "" {
			byName[name] = item.Metadata.Name
		}
	}
	return byName, nil
}
