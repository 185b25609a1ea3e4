package publish

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"

	resourceapi "k8s.io/api/resource/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"

	"github.com/heddle-dev/heddle/topo/master/export"
	"github.com/heddle-dev/heddle/topo/master/snapshot"
)

// objects writes objects of an API that heddle does not define. Those with heddle's
// managed-by label are heddle's, by any name.
type objects struct {
	*Publisher
	api  foreignAPI
	what string
	on   bool

	resource schema.GroupVersionResource
	there    bool
	known    map[string]string // Hash by name.
}

// foreignAPI is an API of another project, or of Kubernetes.
type foreignAPI interface {
	// resource returns the version to use, or false if the API server has none.
	resource(ctx context.Context, raw rest.Interface) (schema.GroupVersionResource, bool, error)
	// objects returns the desired objects for a tree.
	objects(s *snapshot.Snapshot) ([]export.Object, error)
}

// hyperNodes is Volcano's API.
type hyperNodes struct {
	// named reports whether the API server's version has tier names.
	named bool
}

func (h *hyperNodes) resource(ctx context.Context, raw rest.Interface) (schema.GroupVersionResource, bool, error) {
	resource := schema.GroupVersionResource{
		Group: export.HyperNodeGroup, Version: export.HyperNodeVersion, Resource: export.HyperNodeResource,
	}
	// Server-side apply rejects an object with a field that the schema does not
	// have. Where the API server shows no schema, the field is assumed.
	body, err := get(ctx, raw, "/openapi/v3/apis/"+export.HyperNodeGroup+"/"+export.HyperNodeVersion)
	h.named = err != nil || bytes.Contains(body, []byte(`"tierName"`))
	if err != nil && !apierrors.IsNotFound(err) && !apierrors.IsForbidden(err) {
		return resource, false, fmt.Errorf("read the schema of HyperNodes: %w", err)
	}
	return resource, true, nil
}

func (h *hyperNodes) objects(s *snapshot.Snapshot) ([]export.Object, error) {
	return export.HyperNodes(s.Tree, export.TiersOf(s.Levels, s.Tree), h.named)
}

// topologies is Kueue's API of topologies, or KAI's.
type topologies struct {
	group, version string
}

// resource is of the version that the API server prefers.
func (k *topologies) resource(ctx context.Context, raw rest.Interface) (schema.GroupVersionResource, bool, error) {
	var resource schema.GroupVersionResource
	var group metav1.APIGroup
	body, err := get(ctx, raw, "/apis/"+k.group)
	if apierrors.IsNotFound(err) {
		return resource, false, nil
	}
	if err == nil {
		err = json.Unmarshal(body, &group)
	}
	if err != nil {
		return resource, false, fmt.Errorf("read the versions of %s: %w", k.group, err)
	}
	k.version = group.PreferredVersion.Version
	resource = schema.GroupVersionResource{Group: k.group, Version: k.version, Resource: export.TopologiesResource}
	return resource, k.version != "", nil
}

func (k *topologies) objects(s *snapshot.Snapshot) ([]export.Object, error) {
	return export.Topologies(k.group+"/"+k.version, s.Tree)
}

// channels is Kubernetes' API of ResourceSlices.
type channels struct{ label string }

func (channels) resource(context.Context, rest.Interface) (schema.GroupVersionResource, bool, error) {
	return resourceapi.SchemeGroupVersion.WithResource("resourceslices"), true, nil
}

func (c channels) objects(s *snapshot.Snapshot) ([]export.Object, error) {
	cliques := map[string]bool{}
	for _, n := range s.Nodes {
		if r := n.Believed(); r != nil && r.Rest.NVLinkDomain != "" {
			cliques[r.Rest.NVLinkDomain] = true
		}
	}
	return export.Channels(slices.Sorted(maps.Keys(cliques)), c.label)
}

func get(ctx context.Context, raw rest.Interface, path string) ([]byte, error) {
	return raw.Get().AbsPath(path).SetHeader("Accept", "application/json").DoRaw(ctx)
}

func (o *objects) sync(ctx context.Context, s *snapshot.Snapshot, full bool) error {
	if full || o.known == nil {
		if err := o.list(ctx); err != nil {
			return err
		}
	}
	if !o.there {
		return nil
	}
	var list []export.Object
	if o.on {
		var err error
		if list, err = o.api.objects(s); err != nil {
			return err
		}
	}
	var faults []error
	wanted := map[string]bool{}
	for i := range list {
		wanted[list[i].Metadata.Name] = true
		faults = append(faults, o.apply(ctx, &list[i]))
	}
	for name := range o.known {
		if !wanted[name] {
			faults = append(faults, o.remove(ctx, name))
		}
	}
	return errors.Join(faults...)
}

// list reads heddle's objects. A missing API is not an error.
func (o *objects) list(ctx context.Context) error {
	resource, there, err := o.api.resource(ctx, o.options.Raw)
	if err != nil {
		return err
	}
	o.resource, o.there, o.known = resource, there, map[string]string{}
	if there {
		list, err := o.options.Objects.Resource(resource).List(ctx, metav1.ListOptions{
			LabelSelector: export.ManagedByKey + "=" + export.ManagedBy,
		})
		switch {
		case apierrors.IsNotFound(err), apierrors.IsForbidden(err) && !o.on:
			o.there = false
		case err != nil:
			o.known = nil
			return fmt.Errorf("list %s: %w", o.what, err)
		default:
			for i := range list.Items {
				o.known[list.Items[i].Name] = list.Items[i].Annotations[export.SpecHash]
			}
		}
	}
	absent := 0.0
	if o.on && !o.there {
		absent = 1
		o.options.Log.DebugContext(ctx, "export is on and its CRD is not installed", "what", o.what)
	}
	o.metrics.absent.WithLabelValues(o.what).Set(absent)
	return nil
}

// apply writes an object if it is not as it should be. Kueue's levels are
// immutable: such an object is deleted and created again.
func (o *objects) apply(ctx context.Context, want *export.Object) error {
	name, hash := want.Metadata.Name, want.Metadata.Annotations[export.SpecHash]
	if o.known[name] == hash {
		return nil
	}
	body, err := json.Marshal(want)
	if err != nil {
		return fmt.Errorf("encode %s %s: %w", o.what, name, err)
	}
	client := o.options.Objects.Resource(o.resource)
	options := metav1.PatchOptions{FieldManager: FieldManager}
	_, err = client.Patch(ctx, name, types.ApplyPatchType, body, options)
	if _, exists := o.known[name]; exists && apierrors.IsInvalid(err) {
		if err = o.remove(ctx, name); err == nil {
			_, err = client.Patch(ctx, name, types.ApplyPatchType, body, options)
		}
	}
	if err := o.metrics.count(o.what, err); err != nil {
		return fmt.Errorf("apply %s %s: %w", o.what, name, err)
	}
	o.known[name] = hash
	return nil
}

func (o *objects) remove(ctx context.Context, name string) error {
	err := o.options.Objects.Resource(o.resource).Delete(ctx, name, metav1.DeleteOptions{})
	if apierrors.IsNotFound(err) {
		err = nil
	}
	if err := o.metrics.count(o.what, err); err != nil {
		return fmt.Errorf("delete %s %s: %w", o.what, name, err)
	}
	delete(o.known, name)
	return nil
}
