package gcetest

import "time"

// The resources as the API writes them. Fields that the cloud has and this one
// does not know are refused, so a caller cannot rely on them.

// base is what links begin with.
const base = "https://www.googleapis.com/compute/v1/"

type instance struct {
	Kind                    string            `json:"kind,omitempty"`
	ID                      string            `json:"id,omitempty"`
	CreationTimestamp       string            `json:"creationTimestamp,omitempty"`
	Name                    string            `json:"name,omitempty"`
	Description             string            `json:"description,omitempty"`
	Tags                    *tags             `json:"tags,omitempty"`
	MachineType             string            `json:"machineType,omitempty"`
	Status                  string            `json:"status,omitempty"`
	Zone                    string            `json:"zone,omitempty"`
	CanIPForward            bool              `json:"canIpForward,omitempty"`
	NetworkInterfaces       []*nic            `json:"networkInterfaces,omitempty"`
	Disks                   []*attachedDisk   `json:"disks,omitempty"`
	Metadata                *metadata         `json:"metadata,omitempty"`
	ServiceAccounts         []*serviceAccount `json:"serviceAccounts,omitempty"`
	SelfLink                string            `json:"selfLink,omitempty"`
	Scheduling              *scheduling       `json:"scheduling,omitempty"`
	CPUPlatform             string            `json:"cpuPlatform,omitempty"`
	Labels                  map[string]string `json:"labels,omitempty"`
	LabelFingerprint        string            `json:"labelFingerprint,omitempty"`
	Fingerprint             string            `json:"fingerprint,omitempty"`
	MinCPUPlatform          string            `json:"minCpuPlatform,omitempty"`
	GuestAccelerators       []*accelerator    `json:"guestAccelerators,omitempty"`
	StartRestricted         bool              `json:"startRestricted,omitempty"`
	DeletionProtection      bool              `json:"deletionProtection,omitempty"`
	ResourcePolicies        []string          `json:"resourcePolicies,omitempty"`
	ShieldedInstanceConfig  *shielded         `json:"shieldedInstanceConfig,omitempty"`
	AdvancedMachineFeatures *advanced         `json:"advancedMachineFeatures,omitempty"`
	ReservationAffinity     *affinity         `json:"reservationAffinity,omitempty"`
	Confidential            *confidential     `json:"confidentialInstanceConfig,omitempty"`
	LastStartTimestamp      string            `json:"lastStartTimestamp,omitempty"`
	LastStopTimestamp       string            `json:"lastStopTimestamp,omitempty"`
	LastSuspendedTimestamp  string            `json:"lastSuspendedTimestamp,omitempty"`
}

type tags struct {
	Items       []string `json:"items,omitempty"`
	Fingerprint string   `json:"fingerprint,omitempty"`
}

type nic struct {
	Kind          string          `json:"kind,omitempty"`
	Name          string          `json:"name,omitempty"`
	Network       string          `json:"network,omitempty"`
	Subnetwork    string          `json:"subnetwork,omitempty"`
	NetworkIP     string          `json:"networkIP,omitempty"`
	NicType       string          `json:"nicType,omitempty"`
	StackType     string          `json:"stackType,omitempty"`
	AccessConfigs []*accessConfig `json:"accessConfigs,omitempty"`
	IPv6Access    []*accessConfig `json:"ipv6AccessConfigs,omitempty"`
	IPv6Address   string          `json:"ipv6Address,omitempty"`
	IPv6Type      string          `json:"ipv6AccessType,omitempty"`
	IPv6Prefix    int             `json:"internalIpv6PrefixLength,omitempty"`
	AliasIPRanges *[]aliasRange   `json:"aliasIpRanges,omitempty"` // a pointer: an empty list is not an absent one
	Fingerprint   string          `json:"fingerprint,omitempty"`
}

type aliasRange struct {
	IPCidrRange         string `json:"ipCidrRange,omitempty"`
	SubnetworkRangeName string `json:"subnetworkRangeName,omitempty"`
}

type accessConfig struct {
	Kind        string `json:"kind,omitempty"`
	Type        string `json:"type,omitempty"`
	Name        string `json:"name,omitempty"`
	NatIP       string `json:"natIP,omitempty"`
	NetworkTier string `json:"networkTier,omitempty"`
	IPv6        string `json:"externalIpv6,omitempty"`
	IPv6Prefix  int    `json:"externalIpv6PrefixLength,omitempty"`
}

type attachedDisk struct {
	Kind             string            `json:"kind,omitempty"`
	Type             string            `json:"type,omitempty"`
	Mode             string            `json:"mode,omitempty"`
	Source           string            `json:"source,omitempty"`
	DeviceName       string            `json:"deviceName,omitempty"`
	Index            int               `json:"index,omitempty"`
	Boot             bool              `json:"boot,omitempty"`
	InitializeParams *initializeParams `json:"initializeParams,omitempty"`
	AutoDelete       bool              `json:"autoDelete,omitempty"`
	Interface        string            `json:"interface,omitempty"`
	DiskSizeGB       int64             `json:"diskSizeGb,omitempty,string"`
	Architecture     string            `json:"architecture,omitempty"`
	EncryptionKey    *encryptionKey    `json:"diskEncryptionKey,omitempty"`
}

type encryptionKey struct {
	Name           string `json:"kmsKeyName,omitempty"`
	ServiceAccount string `json:"kmsKeyServiceAccount,omitempty"`
}

type affinity struct {
	Use    string   `json:"consumeReservationType,omitempty"`
	Key    string   `json:"key,omitempty"`
	Values []string `json:"values,omitempty"`
}

type confidential struct {
	Enabled bool   `json:"enableConfidentialCompute,omitempty"`
	Type    string `json:"confidentialInstanceType,omitempty"`
}

type nodeAffinity struct {
	Key      string   `json:"key,omitempty"`
	Operator string   `json:"operator,omitempty"`
	Values   []string `json:"values,omitempty"`
}

type initializeParams struct {
	DiskName      string            `json:"diskName,omitempty"`
	SourceImage   string            `json:"sourceImage,omitempty"`
	Snapshot      string            `json:"sourceSnapshot,omitempty"`
	DiskSizeGB    int64             `json:"diskSizeGb,omitempty,string"`
	DiskType      string            `json:"diskType,omitempty"`
	Labels        map[string]string `json:"labels,omitempty"`
	ProvisionedIO int64             `json:"provisionedIops,omitempty,string"`
	ProvisionedMB int64             `json:"provisionedThroughput,omitempty,string"`
}

type metadata struct {
	Kind        string         `json:"kind,omitempty"`
	Fingerprint string         `json:"fingerprint,omitempty"`
	Items       []metadataItem `json:"items,omitempty"`
}

type metadataItem struct {
	Key   string `json:"key,omitempty"`
	Value string `json:"value,omitempty"`
}

type serviceAccount struct {
	Email  string   `json:"email,omitempty"`
	Scopes []string `json:"scopes,omitempty"`
}

type scheduling struct {
	OnHostMaintenance         string       `json:"onHostMaintenance,omitempty"`
	AutomaticRestart          *bool        `json:"automaticRestart,omitempty"`
	Preemptible               bool         `json:"preemptible,omitempty"`
	ProvisioningModel         string       `json:"provisioningModel,omitempty"`
	InstanceTerminationAction string       `json:"instanceTerminationAction,omitempty"`
	MaxRunDuration            *apiDuration `json:"maxRunDuration,omitempty"`
	PreemptionNoticeDuration  *apiDuration `json:"preemptionNoticeDuration,omitempty"`
	GracefulShutdown          *graceful    `json:"gracefulShutdown,omitempty"`

	NodeAffinities []nodeAffinity `json:"nodeAffinities,omitempty"`
}

type graceful struct {
	Enabled     bool         `json:"enabled,omitempty"`
	MaxDuration *apiDuration `json:"maxDuration,omitempty"`
}

type apiDuration struct {
	Seconds int64 `json:"seconds,omitempty,string"`
	Nanos   int32 `json:"nanos,omitempty"`
}

func (d *apiDuration) value() time.Duration {
	if d == nil {
		return 0
	}
	return time.Duration(d.Seconds)*time.Second + time.Duration(d.Nanos)
}

type accelerator struct {
	AcceleratorType  string `json:"acceleratorType,omitempty"`
	AcceleratorCount int    `json:"acceleratorCount,omitempty"`
}

type shielded struct {
	EnableSecureBoot          bool `json:"enableSecureBoot,omitempty"`
	EnableVtpm                bool `json:"enableVtpm,omitempty"`
	EnableIntegrityMonitoring bool `json:"enableIntegrityMonitoring,omitempty"`
}

type advanced struct {
	EnableNestedVirtualization bool `json:"enableNestedVirtualization,omitempty"`
	ThreadsPerCore             int  `json:"threadsPerCore,omitempty"`
}

type operation struct {
	Kind                string          `json:"kind"`
	ID                  string          `json:"id"`
	Name                string          `json:"name"`
	Zone                string          `json:"zone"`
	ClientOperationID   string          `json:"clientOperationId,omitempty"`
	OperationType       string          `json:"operationType"`
	TargetLink          string          `json:"targetLink"`
	TargetID            string          `json:"targetId,omitempty"`
	Status              string          `json:"status"`
	StatusMessage       string          `json:"statusMessage,omitempty"`
	User                string          `json:"user"`
	Progress            int             `json:"progress"`
	InsertTime          string          `json:"insertTime"`
	StartTime           string          `json:"startTime,omitempty"`
	EndTime             string          `json:"endTime,omitempty"`
	SelfLink            string          `json:"selfLink"`
	Error               *operationError `json:"error,omitempty"`
	HTTPErrorStatusCode int             `json:"httpErrorStatusCode,omitempty"`
	HTTPErrorMessage    string          `json:"httpErrorMessage,omitempty"`

	zone string
}

type operationError struct {
	Errors []OperationError `json:"errors"`
}

// An OperationError is why an operation failed, in the cloud's own words.
type OperationError struct {
	Code    string `json:"code"`
	Message string `json:"message"`
}

// page is one page of any list.
type page struct {
	Kind          string `json:"kind"`
	ID            string `json:"id,omitempty"`
	Items         []any  `json:"items,omitempty"`
	NextPageToken string `json:"nextPageToken,omitempty"`
	SelfLink      string `json:"selfLink,omitempty"`
}

// stamp writes an instant as the API does.
func stamp(t time.Time) string { return t.UTC().Format("2006-01-02T15:04:05.000Z07:00") }
