"""Data: who holds which columns of which rows, and where the known data sets come from."""

from securevfl.data.catalog import CatalogEntry, names
from securevfl.data.download import get
from securevfl.data.locations import Listing, listing, where
from securevfl.data.own_files import FileSource, PartyRows, load_files, read_party
from securevfl.data.partition import BatchSchedule, fixed_partition
from securevfl.data.scaling import Scaling
from securevfl.data.sources import load
from securevfl.data.tables import PartyTable, VerticalDataset, check, fingerprint

__all__ = [
    "BatchSchedule",
    "CatalogEntry",
    "FileSource",
    "Listing",
    "PartyRows",
    "PartyTable",
    "Scaling",
    "VerticalDataset",
    "check",
    "fingerprint",
    "fixed_partition",
    "get",
    "listing",
    "load",
    "load_files",
    "names",
    "read_party",
    "where",
]
